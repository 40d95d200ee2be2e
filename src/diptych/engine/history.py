"""Which tokens came before, as penalties want to know it: a function of a request's tokens, kept
up to date so that a long text is not counted anew at every token."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class History:
    """Of one request. Its tokens only ever grow."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = np.unique(np.asarray(prompt, np.int64))
        self._counts: dict[int, int] = {}
        self._end = len(prompt)  # of the tokens that are counted

    def follow(self, tokens: Sequence[int]) -> None:
        """Count what is new in prompt and output so far."""
        for token in tokens[self._end :]:
            self._counts[token] = self._counts.get(token, 0) + 1
        self._end = len(tokens)

    @property
    def seen(self) -> NDArray[np.int64]:
        """Tokens of prompt or output, each once."""
        return np.union1d(self._prompt, self.output)

    @property
    def output(self) -> NDArray[np.int64]:
        """Tokens of the output, each once."""
        return np.fromiter(self._counts.keys(), np.int64, len(self._counts))

    @property
    def counts(self) -> NDArray[np.float64]:
        """How often each of `output` occurs there."""
        return np.fromiter(self._counts.values(), np.float64, len(self._counts))
