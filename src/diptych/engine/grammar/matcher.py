"""Follows one output through its grammar: which tokens may come next.

A mask row is an int32 array of `Vocabulary.num_words`; bit i of word w is token 32·w + i.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from diptych.text.constraints.vocabulary import NOT_TEXT, Vocabulary

Masks = NDArray[np.int32]


class Matcher(Protocol):
    """One output's place in its grammar. Used from one thread at a time."""

    @property
    def is_done(self) -> bool:
        """Whether a stop token was accepted; from then on only stop tokens are allowed."""

    @property
    def is_complete(self) -> bool:
        """Whether the output satisfies the grammar as it stands, so that it may stop."""

    def accept(self, token: int) -> bool:
        """Go on with the token; False, and nothing changed, if the grammar does not allow it."""

    def fill(self, masks: Masks, row: int) -> None:
        """Write the tokens allowed next into `masks[row]`."""

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted tokens."""


def replay(matcher: Matcher, tokens: Sequence[int]) -> bool:
    """Accept the tokens of an output so far (hand-off, recompute); False if one is refused."""
    return all(matcher.accept(token) for token in tokens)


def fill_ahead(matcher: Matcher, drafts: Sequence[int], masks: Masks, row: int) -> int:
    """Fill the row of the next token and one after each draft; the number of drafts allowed.

    Rows after the first draft that is not allowed stay as they are: it will be rejected.
    """
    accepted = 0
    matcher.fill(masks, row)
    for draft in drafts:
        if not matcher.accept(draft):
            break
        accepted += 1
        matcher.fill(masks, row + accepted)
    matcher.rollback(accepted)
    return accepted


class Walk(Protocol):
    """What a backend knows of an output, stop tokens aside."""

    def is_complete(self) -> bool: ...

    def accept(self, token: int) -> bool: ...

    def fill(self, masks: Masks, row: int) -> None: ...

    def rollback(self, count: int) -> None: ...


class StoppingMatcher:
    """A matcher over a backend's walk: the one place that knows what a stop token means."""

    def __init__(self, walk: Walk, vocabulary: Vocabulary) -> None:
        self._walk = walk
        self._stop_ids = vocabulary.stop_ids
        self._stop_row = row_of(vocabulary.stop_ids, vocabulary)
        self._stops = 0

    @property
    def is_done(self) -> bool:
        """Whether a stop token was accepted."""
        return self._stops > 0

    @property
    def is_complete(self) -> bool:
        """Whether the output may stop here."""
        return self._walk.is_complete()

    def accept(self, token: int) -> bool:
        """Go on with the token if the grammar allows it."""
        if token in self._stop_ids:
            if not self.is_complete:
                return False
            self._stops += 1
            return True
        return not self.is_done and self._walk.accept(token)

    def fill(self, masks: Masks, row: int) -> None:
        """Write the tokens allowed next into `masks[row]`."""
        if self.is_done:
            masks[row] = self._stop_row
        else:
            self._walk.fill(masks, row)

    def rollback(self, count: int) -> None:
        """Forget the last tokens."""
        stops = min(count, self._stops)
        self._stops -= stops
        if count > stops:
            self._walk.rollback(count - stops)


class DeferredMatcher:
    """Free tokens up to an opening one (`</think>`); the grammar holds from there.

    The free part has no other special tokens and cannot stop: a call inside the reasoning, or an
    end without an answer, would escape the constraint.
    """

    def __init__(self, inner: Matcher, opening: int, vocabulary: Vocabulary) -> None:
        self._inner = inner
        self._opening = opening
        texts = (i for i, t in enumerate(vocabulary.tokens) if not t.startswith(NOT_TEXT))
        self._free_row = row_of((*texts, opening), vocabulary)
        self._free = 0
        self._constrained: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether a stop token was accepted."""
        return self._inner.is_done

    @property
    def is_complete(self) -> bool:
        """Whether the output may stop here."""
        return self._constrained is not None and self._inner.is_complete

    def accept(self, token: int) -> bool:
        """Go on with the token if it is free or the grammar allows it."""
        if self._constrained is not None:
            accepted = self._inner.accept(token)
            self._constrained += accepted
            return accepted
        if not self._free_row[token // 32] >> (token % 32) & 1:
            return False
        self._free += 1
        if token == self._opening:
            self._constrained = 0
        return True

    def fill(self, masks: Masks, row: int) -> None:
        """Write the tokens allowed next into `masks[row]`."""
        if self._constrained is None:
            masks[row] = self._free_row
        else:
            self._inner.fill(masks, row)

    def rollback(self, count: int) -> None:
        """Forget the last tokens; the opening one is the last that was free."""
        inner = min(count, self._constrained or 0)
        self._inner.rollback(inner)
        if self._constrained is not None:
            self._constrained -= inner
        if count > inner:
            self._constrained = None
            self._free -= count - inner
            assert self._free >= 0


def row_of(tokens: Sequence[int], vocabulary: Vocabulary) -> Masks:
    """The mask row that allows exactly these tokens."""
    bits = np.zeros(vocabulary.num_words * 32, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def tokens_of(row: Masks) -> list[int]:
    """The tokens that a mask row allows."""
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]
