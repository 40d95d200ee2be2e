"""Talking to the model."""

from typing import Annotated

import typer

from diptych import config
from diptych.cli.options import (
    Config,
    DataDir,
    load,
    option,
)

commands = typer.Typer()


@commands.command()
def chat(
    ctx: typer.Context,
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="MESSAGE",
            help="what to say; without it a conversation begins, or standard input is the message",
        ),
    ] = None,
    url: Annotated[str | None, option("--url", "URL", config.ChatSettings)] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="default: the one that is served")
    ] = "",
    thinking: Annotated[bool | None, typer.Option(help="reason before answering")] = None,
    effort: Annotated[
        str | None, typer.Option(metavar="1-100|low|high|max", help="how hard to think")
    ] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T")] = None,
    top_p: Annotated[float | None, typer.Option(metavar="P")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N")] = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="system prompt")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="the whole answer, for programs")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Talk to the model of the running platform, or of any gateway.

    DIPTYCH_API_KEY is the key, where one is needed. In a pipe only the answer's text is printed.
    """
    from diptych.terminal import command
    from diptych.terminal.gateway import Wish

    wish = Wish(
        model=model,
        thinking=thinking,
        effort=int(effort) if effort and effort.isdecimal() else effort,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
    )
    options = command.Options(wish, message, system, as_json)
    raise typer.Exit(command.run(load(config.ChatSettings, ctx), options))
