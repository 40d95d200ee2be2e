"""Where in a text its tokens begin, so that each is told of with the text that it begins."""

from collections.abc import Iterable


class Places:
    """Of one output's text, in the order in which it enters; it leaves in the same order."""

    def __init__(self) -> None:
        self._held: list[tuple[int, int]] = []  # a token, and the place where it begins
        self._num_entered = 0  # characters, shown or held back
        self._num_shown = 0

    def enter(self, num_chars: int, tokens: Iterable[tuple[int, int]]) -> None:
        """More text; `tokens` begin in it, each at one of its characters."""
        self._held += [(token, self._num_entered + place) for token, place in tokens]
        self._num_entered += num_chars

    def show(self, num_chars: int) -> tuple[int, ...]:
        """The tokens that begin in the next characters."""
        self._num_shown += num_chars
        shown = tuple(token for token, start in self._held if start < self._num_shown)
        del self._held[: len(shown)]
        return shown
