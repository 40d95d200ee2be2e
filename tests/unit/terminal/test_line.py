"""What a person types, and what it means."""

import pytest

from diptych.terminal.line import HELP, Line, Verb, read


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("Hello", Line(Verb.SAY, "Hello")),
        ("  two words ", Line(Verb.SAY, "two words")),
        (" /etc/passwd is what?", Line(Verb.SAY, "/etc/passwd is what?")),
        ("", Line(Verb.NOTHING)),
        (" \n ", Line(Verb.NOTHING)),
        ("/clear", Line(Verb.CLEAR)),
        ("/clear ", Line(Verb.CLEAR)),
        ("/system Be  brief. ", Line(Verb.SYSTEM, "Be  brief.")),
        ("/system", Line(Verb.SYSTEM)),
        ("/help", Line(Verb.HELP)),
        ("/exit", Line(Verb.EXIT)),
        ("/systematic", Line(Verb.UNKNOWN, "/systematic")),
        ("/", Line(Verb.UNKNOWN, "/")),
        ("/nothing", Line(Verb.UNKNOWN, "/nothing")),
    ],
)
def test_a_line_is_a_message_or_a_command(typed: str, line: Line) -> None:
    assert read(typed) == line


def test_help_names_every_command() -> None:
    assert {word for word in HELP.split() if word.startswith("/")} == {
        verb.value for verb in Verb if verb.value.startswith("/")
    }
