"""How an answer appears."""

import io
import json

from rich.console import Console

from diptych.terminal.answer import Answer
from diptych.terminal.screen import JsonScreen, PlainScreen, Screen, TerminalScreen

PIECES = [("Hm", ""), (" so", ""), ("", "Yes"), ("", " sir")]


def show(screen: Screen, pieces: list[tuple[str, str]]) -> None:
    screen.begin()
    for reasoning, content in pieces:
        screen.grow(reasoning, content)
    screen.end()


def on_terminal(pieces: list[tuple[str, str]], *, colours: bool = False) -> str:
    out = io.StringIO()
    system = "standard" if colours else None
    console = Console(file=out, force_terminal=colours, color_system=system, width=20)
    show(TerminalScreen(console), pieces)
    return out.getvalue()


def test_reasoning_stands_apart_from_the_answer() -> None:
    assert on_terminal(PIECES) == "Hm so\n\nYes sir\n"
    assert "\x1b[2mHm\x1b[0m" in on_terminal(PIECES, colours=True)


def test_long_lines_are_left_to_the_terminal() -> None:
    assert on_terminal([("", "word " * 20)]) == "word " * 20 + "\n"


def test_what_the_model_writes_cannot_command_the_terminal() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\r\x9b31m[red]\x7f"
    shown = "␛]0;title␇␛[2J␍�31m[red]␡"
    assert on_terminal([(evil, evil)]) == f"{shown}\n\n{shown}\n"


def test_a_pipe_gets_the_content_alone_byte_for_byte() -> None:
    for pieces, text in [
        (PIECES, "Yes sir\n"),
        ([("", "a\x1b[0m\n")], "a\x1b[0m\n"),
        ([("x", "")], ""),
        ([], ""),
    ]:
        out = io.StringIO()
        show(PlainScreen(out), pieces)
        assert out.getvalue() == text


def test_json_is_one_object_when_all_is_over() -> None:
    out = io.StringIO()
    screen = JsonScreen(out, model="m")
    show(screen, PIECES)
    assert out.getvalue() == ""
    screen.conclude(Answer(0.0, "Hm", "Yé", "stop"))
    assert out.getvalue().count("\n") == 1
    assert json.loads(out.getvalue()) == {
        "model": "m",
        "content": "Yé",
        "reasoning_content": "Hm",
        "finish_reason": "stop",
        "usage": None,
        "timings": None,
    }
