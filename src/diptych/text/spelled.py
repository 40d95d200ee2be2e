"""Markers in output that comes as text, from engines that tell no token ids."""

from collections.abc import Iterable

from diptych.text.markers import Marker, split


class Spelled:
    """Holds back what could become a marker."""

    def __init__(self, markers: Iterable[Marker]) -> None:
        self._markers = frozenset(markers)
        self._longest = max(len(marker.value) for marker in self._markers)
        self._held = ""

    def push(self, text: str) -> list[str | Marker]:
        """Texts and markers that are certain, in order."""
        parts = split(self._held + text, self._markers)
        self._held = ""
        if parts and isinstance(last := parts[-1], str):
            cut = self._cut(last)
            self._held = last[cut:]
            parts[-1] = last[:cut]
        return [part for part in parts if isinstance(part, str | Marker) and part]

    def finish(self) -> list[str | Marker]:
        """What is still held."""
        held, self._held = self._held, ""
        return [held] if held else []

    def _cut(self, text: str) -> int:
        """Where the longest beginning of a marker starts that ends the text."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(marker.value.startswith(text[start:]) for marker in self._markers):
                return start
        return len(text)
