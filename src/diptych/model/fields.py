"""One JSON object of a configuration file, read key by key; what is wrong is named."""

from dataclasses import dataclass
from typing import Self

from diptych.core.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Fields:
    """A section of a configuration: where it stands, and its keys."""

    file: str
    path: str  # of the section: "" or "text_config."
    values: dict[str, object]

    @classmethod
    def of(cls, raw: object, file: str, path: str = "") -> Self:
        if not isinstance(raw, dict):
            raise Misconfigured(f"{file}: {path or 'top level'}: expected an object, found {raw!r}")
        return cls(file, path, raw)

    def wrong(self, key: str, expected: str) -> Misconfigured:
        """The error for a key: file, key, value, expectation."""
        found = repr(self.values[key]) if key in self.values else "nothing"
        return Misconfigured(f"{self.file}: {self.path}{key}: expected {expected}, found {found}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def section(self, key: str) -> "Fields":
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(self.file, f"{self.path}{key}.", value)

    def require(self, key: str, expected: object) -> None:
        value = self.values.get(key)
        if value != expected or isinstance(value, bool) != isinstance(expected, bool):
            raise self.wrong(key, repr(expected))

    def require_if_present(self, key: str, expected: object) -> None:
        if self.has(key):
            self.require(key, expected)

    def whole(self, key: str, *, least: int = 1) -> int:
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"a whole number of at least {least}")
        return value

    def multiple(self, key: str, of: int) -> int:
        value = self.whole(key)
        if value % of:
            raise self.wrong(key, f"a multiple of {of}")
        return value

    def number(self, key: str) -> float:
        value = self.values.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def whole_list(self, key: str) -> list[int]:
        """A list of distinct or repeated whole numbers, none negative."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list of whole numbers")
        numbers = [v for v in value if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
        if len(numbers) != len(value):
            raise self.wrong(key, "a list of whole numbers")
        return numbers
