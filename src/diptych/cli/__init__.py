"""The command line. Roles are imported when they are run: help must not wait for torch."""

import sys

import typer

from diptych.cli import api_keys, people, platform, processes
from diptych.cli.options import FAILED_EXIT
from diptych.core.errors import DiptychError, Misconfigured
from diptych.kvcache_store.commands import cache

MISCONFIGURED_EXIT = 2

app = typer.Typer(
    name="diptych",
    help="Serve DeepSeek-V4.1 online: gateway, router, prefill, decode.\n\n"
    "Every option is also a variable (--max-model-len: DIPTYCH_MAX_MODEL_LEN) and a key of the "
    "TOML file given by --config (max_model_len). Flag over variable over file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for part in (platform, people, processes, api_keys):
    app.add_typer(part.commands)
app.add_typer(cache)


def main() -> None:
    """Run a command; a DiptychError becomes one line on standard error."""
    try:
        app()
    except Misconfigured as error:
        sys.exit(_complain(error, MISCONFIGURED_EXIT))
    except DiptychError as error:
        sys.exit(_complain(error, FAILED_EXIT))


def _complain(error: DiptychError, code: int) -> int:
    print(f"diptych: {error.message}", file=sys.stderr)
    return code
