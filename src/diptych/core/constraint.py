"""What a request demands of its output, as one value that travels from gateway to engine."""

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum, auto


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
        """As one piece of bytes."""
        held = [self.kind, self.source, self.whitespace, self.is_closed, self.param]
        return json.dumps(held).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> "Constraint":
        """What `pack` packed."""
        kind, source, whitespace, is_closed, param = json.loads(packed)
        return cls(Kind(kind), source, whitespace, is_closed, param)
