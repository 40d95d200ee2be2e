"""The two grammar libraries behind one interface. Importing xgrammar loads torch, so both are
imported when a backend is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from diptych.engine.grammar.matcher import Masks, Matcher, StoppingMatcher
from diptych.engine.grammar.surrogates import Surrogates
from diptych.text.constraints.ebnf import to_ebnf
from diptych.text.constraints.grammar import Grammar, invalid
from diptych.text.constraints.lark import to_lark
from diptych.text.constraints.vocabulary import NOT_TEXT, Vocabulary

if TYPE_CHECKING:
    import llguidance
    import xgrammar

BackendName = Literal["xgrammar", "llguidance"]
_RULE_CACHE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar ready for any number of outputs."""

    size_bytes: int
    matcher: Callable[[], Matcher]


class Backend(Protocol):
    """Compiles grammars for one vocabulary. Thread-safe; releases the GIL while it works."""

    def compile(self, grammar: Grammar, param: str) -> Compiled:
        """The compiled grammar, or BadRequest (`invalid_schema`)."""


def make_backend(name: BackendName, vocabulary: Vocabulary) -> Backend:
    """The backend of this name; takes up to seconds for a large vocabulary."""
    if name == "xgrammar":
        return XgrammarBackend(vocabulary)
    return LlguidanceBackend(vocabulary)


class XgrammarBackend:
    """xgrammar: dearer to compile, cheap at every token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._library = xgrammar
        self._vocabulary = vocabulary
        tokens = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.stop_ids),
        )
        self._surrogates = Surrogates(vocabulary)
        self._compiler = xgrammar.GrammarCompiler(
            tokens, max_threads=1, cache_enabled=True, cache_limit_bytes=_RULE_CACHE_BYTES
        )

    def compile(self, grammar: Grammar, param: str) -> Compiled:
        """The compiled grammar."""
        text = to_ebnf(grammar, self._vocabulary.token_id)
        try:
            compiled = self._compiler.compile_grammar(text)
        except RuntimeError as error:
            raise invalid("the constraint cannot be compiled", param) from error
        return Compiled(
            compiled.memory_size_bytes,
            lambda: StoppingMatcher(
                _XgrammarWalk(self._library.GrammarMatcher(compiled), self._surrogates),
                self._vocabulary,
            ),
        )


class _XgrammarWalk:
    def __init__(self, matcher: xgrammar.GrammarMatcher, surrogates: Surrogates) -> None:
        self._matcher = matcher
        self._surrogates = surrogates
        self._tokens: list[int] = []

    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def accept(self, token: int) -> bool:
        if self._surrogates.bars(token, self._tokens) or not self._matcher.accept_token(token):
            return False
        self._tokens.append(token)
        return True

    def fill(self, masks: Masks, row: int) -> None:
        self._matcher.fill_next_token_bitmask(masks, row)
        masks[row] &= self._surrogates.allowed(self._tokens)

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        del self._tokens[len(self._tokens) - count :]


class LlguidanceBackend:
    """llguidance: compiles in a millisecond, computes each mask anew."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        self._library = llguidance
        self._vocabulary = vocabulary
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_PlainTokenizer(vocabulary)),
            n_vocab=len(vocabulary.tokens),
            eos_token=list(vocabulary.stop_ids),
        )
        self._limits = llguidance.LLParserLimits(verbose_errors=False)

    def compile(self, grammar: Grammar, param: str) -> Compiled:
        """The compiled grammar."""
        text = to_lark(grammar, self._vocabulary.token_id)
        source = self._library.LLMatcher.grammar_from_lark(text)
        first = self._library.LLMatcher(self._tokens, source, log_level=0, limits=self._limits)
        if first.is_error():
            raise invalid("the constraint cannot be compiled", param)
        row_bytes = self._vocabulary.num_words * 4
        return Compiled(
            16 * len(text),  # it does not tell; its states are made while it walks
            lambda: StoppingMatcher(
                _LlguidanceWalk(first.deep_copy(), row_bytes), self._vocabulary
            ),
        )


class _LlguidanceWalk:
    def __init__(self, matcher: llguidance.LLMatcher, row_bytes: int) -> None:
        self._matcher = matcher
        self._row_bytes = row_bytes

    def is_complete(self) -> bool:
        return self._matcher.is_accepting()

    def accept(self, token: int) -> bool:
        return self._matcher.try_consume_tokens([token]) == 1

    def fill(self, masks: Masks, row: int) -> None:
        mask = self._matcher.compute_bitmask()[: self._row_bytes]
        masks[row] = np.frombuffer(mask, dtype=np.int32)

    def rollback(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)


class _PlainTokenizer:
    """What llguidance asks of a tokenizer. Where the grammar forces a text it offers only these
    tokens for it: the longest first, as a byte-level tokenizer mostly would."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.stop_ids[0]
        self.bos_token_id = None
        self.tokens = list(vocabulary.tokens)
        texts = {t: i for i, t in enumerate(self.tokens) if not t.startswith(NOT_TEXT)}
        self.special_token_ids = [i for i, t in enumerate(self.tokens) if t.startswith(NOT_TEXT)]
        self._ids = texts
        self._longest = max(map(len, texts), default=1)

    def __call__(self, text: bytes) -> Sequence[int]:
        found: list[int] = []
        at = 0
        while at < len(text):
            size = next(
                n for n in range(self._longest, 0, -1) if n == 1 or text[at : at + n] in self._ids
            )
            found.append(self._ids[text[at : at + size]])
            at += size
        return found
