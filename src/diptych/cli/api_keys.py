"""`diptych keys`: who may use the gateways, and how much."""

from typing import Annotated

import typer

from diptych import config
from diptych.cli.options import (
    Config,
    DataDir,
    load,
)

commands = typer.Typer(
    name="keys",
    help="API keys: who may use the gateways, and how much.\n\nThe first key closes the gateways "
    "of this data folder to everybody without one.",
    no_args_is_help=True,
)

KeyId = Annotated[str, typer.Argument(metavar="ID", help="the 12 characters after sk-")]
AsJson = Annotated[bool, typer.Option("--json", help="for programs")]
KeyLimit = Annotated[int | None, typer.Option(metavar="N", show_default=False)]


@commands.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Option(help="whose key it is")],
    tenant: Annotated[str, typer.Option(help="keys of one tenant share cache and limits")] = (
        "default"
    ),
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="inference, debug, usage:read, admin:read or admin:write; repeatable "
            "(default: inference)",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="may use this one; repeatable (default: all)")
    ] = None,
    network: Annotated[
        list[str] | None, typer.Option(help="may call from here; repeatable (default: anywhere)")
    ] = None,
    expires_days: Annotated[float | None, typer.Option(help="default: never")] = None,
    priority_class: Annotated[str, typer.Option("--class", help="scheduling class")] = "",
    retention: Annotated[
        str, typer.Option(help="of cached KV: chat (7 days), agent (3 days), pinned or none")
    ] = "chat",
    requests_per_min: KeyLimit = None,
    tokens_per_min: KeyLimit = None,
    concurrency: KeyLimit = None,
    max_input_tokens: KeyLimit = None,
    max_output_tokens: KeyLimit = None,
    tokens_per_day: KeyLimit = None,
    tokens_per_month: KeyLimit = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Make a key and print its secret, once."""
    from diptych.gateway.tenancy import counter

    fields = {name: ctx.params[name] for name in counter.LIMITS}
    wish = counter.wish(
        name,
        tenant,
        scopes=scope or ["inference"],
        models=model or [],
        networks=network or [],
        expires_days=expires_days,
        priority_class=priority_class,
        retention=retention,
        limits=fields,
    )
    counter.create(load(config.KeysSettings, ctx), wish, as_json)


@commands.command("list")
def list_keys(
    ctx: typer.Context,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Show all keys, without their secrets."""
    from diptych.gateway.tenancy import counter

    counter.show_all(load(config.KeysSettings, ctx), as_json)


@commands.command()
def rotate(
    ctx: typer.Context,
    key_id: KeyId,
    overlap_s: Annotated[
        float, typer.Option(metavar="SECONDS", help="how long the old secret stays valid")
    ] = 86_400.0,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Give a key a new secret and print it, once."""
    from diptych.gateway.tenancy import counter

    counter.rotate(load(config.KeysSettings, ctx), key_id, overlap_s, as_json)


@commands.command()
def revoke(
    ctx: typer.Context,
    key_id: KeyId,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Refuse a key from now on."""
    from diptych.gateway.tenancy import counter

    counter.revoke(load(config.KeysSettings, ctx), key_id, as_json)
