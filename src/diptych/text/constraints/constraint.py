"""What a request demands of its output, as one value that travels from gateway to engine."""

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum, auto

from diptych.text.constraints.grammar import invalid
from diptych.text.constraints.references import check_size

MAX_SOURCE_BYTES = 256 * 1024


class Kind(StrEnum):
    """How `source` is to be read."""

    JSON_SCHEMA = auto()
    JSON_OBJECT = auto()
    REGEX = auto()
    CHOICE = auto()
    EBNF = auto()
    STRUCTURAL_TAG = auto()
    TOOL_CALLS = auto()


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language for the answer. Equal values mean the same language."""

    kind: Kind
    source: str  # canonical JSON; a pattern or a grammar as it was written
    whitespace: str | None = None  # None: free, bounded; "": Python's spacing; else a pattern
    is_closed: bool = False  # whether objects with properties have no others unless they say so
    param: str = field(default="response_format", compare=False)  # where the request says it

    @property
    def key(self) -> str:
        """Identity for caches."""
        spacing = "free" if self.whitespace is None else f"by {self.whitespace}"
        text = "\0".join((self.kind, spacing, str(self.is_closed), self.source))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def pack(self) -> bytes:
        """For a wire."""
        held = [self.kind, self.source, self.whitespace, self.is_closed, self.param]
        return json.dumps(held).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> "Constraint":
        """What `pack` packed."""
        kind, source, whitespace, is_closed, param = json.loads(packed)
        return cls(Kind(kind), source, whitespace, is_closed, param)


def canonical(value: object, param: str) -> str:
    """JSON as one text: members in their order, no spaces, nothing that UTF-8 or JSON lacks."""
    check_size(value, param)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise invalid("this is not JSON", param) from error
    return checked_text(text, param)


def checked_text(text: object, param: str, max_bytes: int = MAX_SOURCE_BYTES) -> str:
    """A string that UTF-8 can hold, of bounded size."""
    if not isinstance(text, str):
        raise invalid("expected a string", param)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise invalid("the text holds half a surrogate pair", param) from error
    if size > max_bytes:
        raise invalid(f"at most {max_bytes} bytes can be enforced", param)
    return text
