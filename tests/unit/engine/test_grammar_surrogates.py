"""No output spells half of a surrogate pair, whichever way its bytes are cut into tokens."""

import numpy as np
import pytest

from diptych.core.constraint import Constraint, Kind
from diptych.engine.grammar.backends import BackendName, make_backend
from diptych.engine.grammar.matcher import Matcher, tokens_of
from diptych.text.constraints import build
from diptych.text.constraints.vocabulary import Vocabulary

BYTES = tuple(bytes([value]) for value in range(256))
WORDS = (b"\xed\xa0\x80", b"\xed\x9f", b"a\xed", b"\xed\xb0")
STOP = len(BYTES) + len(WORDS)
VOCABULARY = Vocabulary((*BYTES, *WORDS, b"\xffstop"), {"stop": STOP}, (STOP,), "test")


def matcher_of(backend: BackendName) -> Matcher:
    grammar = build(Constraint(Kind.REGEX, "[^b]{1,3}"))
    return make_backend(backend, VOCABULARY).compile(grammar, "regex").matcher()


def allowed(matcher: Matcher) -> set[int]:
    masks = np.zeros((1, VOCABULARY.num_words), np.int32)
    matcher.fill(masks, 0)
    return set(tokens_of(masks[0]))


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("lead", [0xED, 256 + WORDS.index(b"a\xed")])
def test_a_lead_byte_is_followed_by_a_character_that_exists(
    backend: BackendName, lead: int
) -> None:
    matcher = matcher_of(backend)
    assert matcher.accept(lead)
    assert allowed(matcher) == set(range(0x80, 0xA0))
    assert not matcher.accept(0xA0)
    assert matcher.accept(0x9F) and matcher.accept(0x80)
    assert matcher.is_complete


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_a_token_that_spells_half_a_pair_is_never_allowed(backend: BackendName) -> None:
    matcher = matcher_of(backend)
    for word in (b"\xed\xa0\x80", b"\xed\xb0"):
        token = len(BYTES) + WORDS.index(word)
        assert token not in allowed(matcher)
        assert not matcher.accept(token)


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_a_rollback_forgets_the_lead_byte(backend: BackendName) -> None:
    matcher = matcher_of(backend)
    before = allowed(matcher)
    assert matcher.accept(0xED)
    matcher.rollback(1)
    assert allowed(matcher) == before
