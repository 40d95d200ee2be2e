"""Keeps halves of surrogate pairs out of outputs: bytes that look like a character and are none.

UTF-8 would spell U+D800 to U+DFFF as ED A0 80 to ED BF BF, and forbids it. xgrammar counts such
bytes as a character of any class around that gap.
"""

import re
from collections.abc import Sequence

from diptych.engine.grammar.matcher import Masks, row_of
from diptych.text.constraints.vocabulary import Vocabulary

LEAD = b"\xed"
_WHOLE = re.compile(rb"\xed[\xa0-\xbf]")
_REST = re.compile(rb"[\xa0-\xbf]")


class Surrogates:
    """Which tokens of a vocabulary spell, or would complete, half of a pair."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = vocabulary.tokens
        self._leads = frozenset(i for i, token in enumerate(tokens) if token.endswith(LEAD))
        self._never = frozenset(i for i, token in enumerate(tokens) if _WHOLE.search(token))
        rest = (i for i, token in enumerate(tokens) if _REST.match(token))
        self._never_behind_lead = self._never.union(rest)
        self._row = ~row_of(sorted(self._never), vocabulary)
        self._row_behind_lead = ~row_of(sorted(self._never_behind_lead), vocabulary)

    def bars(self, token: int, behind: Sequence[int]) -> bool:
        """Whether the token may not come behind these."""
        return token in (self._never_behind_lead if self._is_open(behind) else self._never)

    def allowed(self, behind: Sequence[int]) -> Masks:
        """The mask row of the tokens that may come behind these."""
        return self._row_behind_lead if self._is_open(behind) else self._row

    def _is_open(self, behind: Sequence[int]) -> bool:
        return bool(behind) and behind[-1] in self._leads
