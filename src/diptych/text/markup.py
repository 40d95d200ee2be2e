"""Tags of the model's markup for calls: what stands between `<｜DSML｜` and `>`."""

import re
from dataclasses import dataclass
from enum import Enum

MAX_CHARS = 4096  # of a tag; what is longer is none


class Kind(Enum):
    """Elements of the markup; the block has an old name, too."""

    CALLS = "calls"
    OLD_CALLS = "tool_calls"
    INVOKE = "invoke"
    PARAMETER = "parameter"


@dataclass(frozen=True, slots=True)
class Tag:
    """One complete tag."""

    kind: Kind
    is_closing: bool
    name: str = ""
    is_string: bool | None = None  # of a parameter's value; None: not said


class TagReader:
    """Collects the text of one tag, token by token."""

    def __init__(self, *, is_closing: bool) -> None:
        self._is_closing = is_closing
        self._body = ""

    @property
    def opens_another(self) -> str:
        """`<` or `</` at the end, which begins the next tag if there is one."""
        return next((tail for tail in ("</", "<") if self._body.endswith(tail)), "")

    def push(self, text: str) -> str | None:
        """What follows the tag; None as long as the tag goes on."""
        start = len(self._body)
        self._body += text
        while (found := _END.search(self._body, start)) and self._is_inside_name(found.start()):
            start = found.end()
        if found is None:
            if len(self._body) <= MAX_CHARS:
                return None
            self._body = ""
            return ""
        is_tag = found[0] == ">"
        rest = self._body[found.end() if is_tag else found.start() :]
        self._body = self._body[: found.start()] if is_tag else ""
        return rest

    def tag(self) -> Tag | None:
        """The tag, once it is complete; None if it is none that we know."""
        found = _TAG.fullmatch(self._body)
        if found is None:
            return None
        kind, rest = Kind(found["kind"]), found["rest"]
        if self._is_closing or kind in (Kind.CALLS, Kind.OLD_CALLS):
            return None if rest.strip() else Tag(kind, self._is_closing)
        if kind is Kind.PARAMETER and (full := _PARAMETER.fullmatch(rest)):
            return Tag(kind, False, full["name"], full["string"] == "true")
        name = _NAME.match(rest)
        return Tag(kind, False, name["name"]) if name else None

    def _is_inside_name(self, end: int) -> bool:
        opened = self._body.find('name="', 0, end)
        return opened >= 0 and self._body.find('"', opened + 6, end) < 0


_END = re.compile(r"[>\n]")  # a line that ends makes it no tag
_TAG = re.compile(r" ?(?P<kind>tool_calls|calls|invoke|parameter)(?P<rest>.*)", re.DOTALL)
_NAME = re.compile(r'\s+name="(?P<name>[^"]*)"')
_PARAMETER = re.compile(r'\s+name="(?P<name>.*?)"\s+string="(?P<string>true|false)"\s*', re.DOTALL)
