"""Stop strings in a growing text: find the first to end, and hold back what could become one."""

from collections.abc import Sequence


class StopFinder:
    """Decides character by character, so any chunking of the text gives the same result."""

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        """`keep`: the stop string itself is part of the text."""
        self._needles = [_Needle(stop) for stop in stops]
        self._firsts = frozenset(stop[0] for stop in stops)
        self._keep = keep
        self._held = ""
        self.found: str | None = None
        self.found_at = 0  # characters of the last push that it took

    def push(self, text: str) -> str:
        """Text that is certain not to belong to a stop string; all that precedes it once found.

        The stop that ends first wins; of two that end together, the one that starts first.
        """
        if not self._needles or not text:
            return text
        if self.found is not None:
            return ""
        if not self._held and self._firsts.isdisjoint(text):
            return text
        for index, char in enumerate(text):
            longest = max(needle.advance(char) for needle in self._needles)
            complete = [n.stop for n in self._needles if n.matched == len(n.stop)]
            if complete:
                self.found = max(complete, key=len)
                self.found_at = index + 1
                seen = self._held + text[: index + 1]
                self._held = ""
                return seen if self._keep else seen[: len(seen) - len(self.found)]
        seen = self._held + text
        released, self._held = seen[: len(seen) - longest], seen[len(seen) - longest :]
        return released

    def finish(self) -> str:
        """Text still held: it did not become a stop string. What follows begins anew."""
        for needle in self._needles:
            needle.matched = 0
        held, self._held = self._held, ""
        return held


class _Needle:
    """Knuth, Morris, Pratt: the longest suffix of the text that is a prefix of `stop`."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = _fallbacks(stop)

    def advance(self, char: str) -> int:
        while self.matched and (self.matched == len(self.stop) or self.stop[self.matched] != char):
            self.matched = self._fallback[self.matched - 1]
        if self.stop[self.matched] == char:
            self.matched += 1
        return self.matched


def _fallbacks(stop: str) -> list[int]:
    """Of each prefix, the length of its longest border."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
