"""Blocks of calls, from their tags and texts to pieces. Knows no tokens."""

from collections import Counter
from collections.abc import Mapping
from enum import Enum, auto

from diptych.text.arguments import Arguments
from diptych.text.markup import Kind, Tag
from diptych.text.pieces import CallArguments, CallEnd, CallStart, Oddity, Piece

_NONE: frozenset[str] = frozenset()


class _Place(Enum):
    OUTSIDE = auto()
    BLOCK = auto()
    CALL = auto()
    VALUE = auto()


class Calls:
    """Of one output. Tags that are missing are taken as written where the next ones imply them."""

    def __init__(
        self,
        properties: Mapping[str, frozenset[str]],
        *,
        parallel: bool,
        trusted: bool,
        odd: Counter[Oddity],
    ) -> None:
        """`properties`: of each tool's schema, by the tool's name."""
        self._parallel = parallel
        self._properties = properties
        self._trusted = trusted
        self._odd = odd
        self._place = _Place.OUTSIDE
        self._arguments = Arguments(_NONE, trusted=trusted, odd=odd)
        self._index = -1  # of the current call
        self.num_finished = 0

    @property
    def is_outside(self) -> bool:
        """Before, between or after blocks."""
        return self._place is _Place.OUTSIDE

    @property
    def is_full(self) -> bool:
        """No further call is allowed."""
        return self.num_finished > 0 and not self._parallel

    def open_block(self) -> None:
        """Before any call."""
        self._place = _Place.BLOCK

    def text(self, text: str) -> list[Piece]:
        """Text between tags."""
        if self._place is _Place.VALUE or self._place is _Place.CALL:
            return self._more(self._arguments.text(text))
        return []

    def tag(self, tag: Tag | None) -> list[Piece]:
        """One tag; None for one that we do not know."""
        is_open = self._place in (_Place.CALL, _Place.VALUE)
        match tag:
            case Tag(Kind.CALLS | Kind.OLD_CALLS, is_closing=False) if not is_open:
                self.open_block()
            case Tag(Kind.CALLS | Kind.OLD_CALLS, is_closing=True) if not self.is_outside:
                pieces = self._finish_call()
                self._place = _Place.OUTSIDE
                return pieces
            case Tag(Kind.INVOKE, is_closing=False, name=name):
                pieces = self._finish_call()
                return pieces if self.is_full else pieces + self._start_call(name)
            case Tag(Kind.INVOKE, is_closing=True) if is_open:
                return self._finish_call()
            case Tag(Kind.PARAMETER, False, name, is_string) if is_open:
                self._place = _Place.VALUE
                return self._more(self._arguments.open(name, is_string))
            case Tag(Kind.PARAMETER, is_closing=True) if self._place is _Place.VALUE:
                self._place = _Place.CALL
                return self._more(self._arguments.close())
            case _:
                self._odd[Oddity.STRAY_MARKUP] += 1
        return []

    def finish(self, *, cut: bool) -> list[Piece]:
        """The output ends. What is open is closed, unless it was `cut`."""
        if self._place not in (_Place.CALL, _Place.VALUE):
            return []
        if cut:
            return self._more(self._arguments.cut())
        self._odd[Oddity.UNCLOSED] += 1
        return self._finish_call()

    def _start_call(self, name: str) -> list[Piece]:
        self._odd[Oddity.UNKNOWN_TOOL] += name not in self._properties
        self._index += 1
        self._place = _Place.CALL
        properties = self._properties.get(name, _NONE)
        self._arguments = Arguments(properties, trusted=self._trusted, odd=self._odd)
        return [CallStart(self._index, name)]

    def _finish_call(self) -> list[Piece]:
        if self._place not in (_Place.CALL, _Place.VALUE):
            return []
        self._place = _Place.BLOCK
        self.num_finished += 1
        return [*self._more(self._arguments.finish()), CallEnd(self._index)]

    def _more(self, arguments: str) -> list[Piece]:
        return [CallArguments(self._index, arguments)] if arguments else []
