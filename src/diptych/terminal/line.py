"""What a person types: a message, or a command."""

from dataclasses import dataclass
from enum import Enum

HELP = """\
/clear          forget the conversation
/system TEXT    set the system prompt; without a text there is none
/help           this
/exit           leave (Ctrl-D does, too)

Ctrl-C stops an answer; once more, it leaves. A line that ends with \\ goes on in the next."""


class Verb(Enum):
    """What to do."""

    SAY = ""
    CLEAR = "/clear"
    SYSTEM = "/system"
    HELP = "/help"
    EXIT = "/exit"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


_COMMANDS = {verb.value: verb for verb in (Verb.CLEAR, Verb.SYSTEM, Verb.HELP, Verb.EXIT)}


@dataclass(frozen=True, slots=True)
class Line:
    """A verb and its text."""

    verb: Verb
    text: str = ""


def read(typed: str) -> Line:
    """A text that has to begin with a slash begins with a space, too."""
    if not typed.strip():
        return Line(Verb.NOTHING)
    if not typed.startswith("/"):
        return Line(Verb.SAY, typed.strip())
    word, _, rest = typed.strip().partition(" ")
    verb = _COMMANDS.get(word, Verb.UNKNOWN)
    return Line(verb, word if verb is Verb.UNKNOWN else rest.strip())
