"""The parameters of one call to its arguments as JSON, in fragments as they come.

Strings leave as they come. Other values wait until they are complete, and become strings if they
are not the JSON they claim to be, so the whole is JSON in any case.
"""

from collections import Counter
from enum import Enum, auto

from diptych.text import pyjson
from diptych.text.pieces import Oddity

MAX_WAITING_CHARS = 1 << 20

_WRAPPERS = ("arguments", "input")


class _Mode(Enum):
    NONE = auto()  # between values
    STRING = auto()
    VERBATIM = auto()  # JSON, believed
    WAIT = auto()  # until it is complete
    WRAPPED = auto()  # waits: perhaps it holds all the arguments
    SKIP = auto()


class Arguments:
    """Of one call. Every method returns the next fragment, possibly none."""

    def __init__(self, properties: frozenset[str], *, trusted: bool, odd: Counter[Oddity]) -> None:
        """`properties` are those of the tool's schema; `trusted`: a grammar wrote the values."""
        self._properties = properties
        self._trusted = trusted
        self._odd = odd
        self._mode = _Mode.NONE
        self._keys: set[str] = set()
        self._is_string: bool | None = None
        self._waiting: list[str] = []
        self._num_waiting = 0
        self._wrapper: str | None = None  # name of the first parameter, not yet told
        self._wrapped = ""

    def open(self, key: str, is_string: bool | None) -> str:
        """A parameter begins."""
        before = self.close() + self._unwrap()
        self._take()  # text between tags
        if key in self._keys:
            self._odd[Oddity.REPEATED_PARAMETER] += 1
            self._mode = _Mode.SKIP
            return before
        is_first = not self._keys
        self._keys.add(key)
        self._is_string = is_string
        if is_first and key in _WRAPPERS and key not in self._properties:
            self._wrapper = key
            self._mode = _Mode.WRAPPED
            return before
        before += self._name(key, is_first)
        if is_string:
            self._mode = _Mode.STRING
            return before + '"'
        is_believed = self._trusted and is_string is False
        self._mode = _Mode.VERBATIM if is_believed else _Mode.WAIT
        return before

    def text(self, text: str) -> str:
        """More of the parameter's value; between parameters it counts only if there are none."""
        match self._mode:
            case _Mode.STRING:
                return pyjson.escape(text)
            case _Mode.VERBATIM:
                return text
            case _Mode.SKIP:
                return ""
            case _Mode.NONE if self._keys or self._num_waiting > MAX_WAITING_CHARS:
                return ""
        self._waiting.append(text)
        self._num_waiting += len(text)
        if self._mode is _Mode.WAIT and self._num_waiting > MAX_WAITING_CHARS:
            self._mode = _Mode.VERBATIM
            return self._take()
        return ""

    def close(self) -> str:
        """The parameter ends."""
        mode, self._mode = self._mode, _Mode.NONE
        match mode:
            case _Mode.STRING:
                return '"'
            case _Mode.WAIT:
                return self._value(self._take())
            case _Mode.WRAPPED:
                self._wrapped = self._take()
        return ""

    def finish(self) -> str:
        """The call ends."""
        last = self.close()
        if not self._keys:
            return self._body(self._take())
        if self._wrapper is not None and len(self._keys) == 1:
            inner = _object(self._wrapped)
            if inner is not None:
                return inner
        return last + self._unwrap() + "}"

    def cut(self) -> str:
        """The output ends in the middle: what waited, as it is."""
        if self._mode is _Mode.WRAPPED and self._wrapper is not None:
            name = self._name(self._wrapper, True)
            held = self._take()
            return name + ('"' + pyjson.escape(held) if self._is_string else held)
        if self._mode is _Mode.WAIT:
            return self._take()
        return self._unwrap()

    def _name(self, key: str, is_first: bool) -> str:
        return f"{'{' if is_first else ', '}{pyjson.dumps(key)}: "

    def _unwrap(self) -> str:
        """The first parameter, now that it is one like others."""
        if self._wrapper is None:
            return ""
        name, self._wrapper = self._name(self._wrapper, True), None
        value = pyjson.dumps(self._wrapped) if self._is_string else self._value(self._wrapped)
        return name + value

    def _value(self, text: str) -> str:
        try:
            return pyjson.restyle(text)
        except ValueError:
            self._odd[Oddity.BAD_VALUE] += self._is_string is False
            return pyjson.dumps(text)

    def _body(self, text: str) -> str:
        """Of a call without parameters: an object there is taken for the arguments."""
        if not text.strip():
            return "{}"
        inner = _object(text)
        self._odd[Oddity.BAD_BODY] += inner is None
        return inner or "{}"

    def _take(self) -> str:
        text = "".join(self._waiting)
        self._waiting.clear()
        self._num_waiting = 0
        return text


def _object(text: str) -> str | None:
    """An object in our spelling; None if the text is none."""
    if not text.strip().startswith("{"):
        return None
    try:
        return pyjson.restyle(text)
    except ValueError:
        return None
