"""`diptych chat`: finds the gateway, and talks to it once or for as long as a person likes."""

import os
import readline  # noqa: F401  # gives input() its editing and its history, which no file keeps
import sys
from dataclasses import dataclass, replace

from rich.console import Console
from rich.text import Text

from diptych.config import ChatSettings
from diptych.core.errors import Lost, Misconfigured
from diptych.supervisor.folder import State
from diptych.terminal.gateway import Gateway, Wish
from diptych.terminal.interrupts import held_back
from diptych.terminal.screen import JsonScreen, PlainScreen, Screen, TerminalScreen
from diptych.terminal.session import INTERRUPTED, Conversation, Session

READER_GONE = 141  # what a shell says of a program that SIGPIPE ended


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. Without a message a person is asked, or standard input read."""

    wish: Wish
    message: str | None = None
    system: str = ""
    as_json: bool = False


def run(settings: ChatSettings, options: Options) -> int:
    """The exit code; DiptychError says why there is no answer."""
    url, model = _gateway(settings)
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    try:
        with Gateway(url, key) as gateway:
            model = options.wish.model or model or gateway.model_name()
            return _talk(gateway, url, replace(options, wish=replace(options.wish, model=model)))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return READER_GONE


def _gateway(settings: ChatSettings) -> tuple[str, str]:
    """Address and model of what runs on the data folder, unless another address is given."""
    if settings.url:
        return settings.url, ""
    state = State.read(settings.data_dir)
    if state is None:
        raise Lost(
            f"nothing is running on {settings.data_dir}: start it with `diptych up`, "
            "or name a gateway with --url"
        )
    return state.base_url, state.model


def _talk(gateway: Gateway, url: str, options: Options) -> int:
    console = Console(highlight=False)
    is_person = sys.stdin.isatty() and console.is_terminal

    def conversation(screen: Screen) -> Conversation:
        return Conversation(gateway, options.wish, screen, options.system, held_back)

    if options.message is None and is_person and not options.as_json:
        console.print(Text(f"{options.wish.model} at {url} · /help", "dim"), soft_wrap=True)
        return Session(conversation(TerminalScreen(console)), console, input).run()
    message = (sys.stdin.read() if options.message is None else options.message).strip()
    if not message:
        raise Misconfigured("nothing to say: give a MESSAGE, or write it to standard input")
    answer = conversation(_screen(console, options)).ask(message)
    return INTERRUPTED if answer.is_stopped else 0


def _screen(console: Console, options: Options) -> Screen:
    if options.as_json:
        return JsonScreen(sys.stdout, model=options.wish.model)
    return TerminalScreen(console) if console.is_terminal else PlainScreen(sys.stdout)
