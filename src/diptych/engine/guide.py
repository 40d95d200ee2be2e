"""Keeps a request's output inside its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from diptych.core.errors import Broken

if TYPE_CHECKING:  # book-keeping imports this, and needs no grammar library
    from diptych.engine.grammar.matcher import Matcher


class Guide:
    """A matcher that follows the tokens of one request, wherever they came from.

    It takes in what it has not seen when it is asked, so a hand-off, a retry with forced output and
    a computation that is repeated need no care.
    """

    def __init__(self, matcher: Matcher, num_words: int, prompt_len: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros((1, num_words), np.int32)
        self._end = prompt_len  # of the tokens that the matcher knows

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each id may come behind these tokens, prompt and output."""
        for token in tokens[self._end :]:
            if not self._matcher.accept(token):
                raise Broken(f"the grammar does not allow token {token} at position {self._end}")
            self._end += 1
        self._matcher.fill(self._mask, 0)
        return np.unpackbits(self._mask[0].view(np.uint8), bitorder="little").view(np.bool_)
