"""Places of tokens in a text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from diptych.gateway.completions.logprobs import Offsets


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in pairwise(places)]


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_a_token_has_the_place_of_the_character_that_it_begins_in(text: str, at: list[int]) -> None:
    offsets, before = Offsets(), b""
    for token in cut(text.encode(), at):
        assert offsets.push(token) == len(before.decode(errors="ignore"))
        before += token


@given(st.lists(st.binary(max_size=4)))
def test_no_token_begins_behind_the_text_whatever_its_bytes(tokens: list[bytes]) -> None:
    offsets = Offsets()
    places = [offsets.push(token) for token in tokens]
    assert places == sorted(places)
    # An empty token ends a character, as those do that are not shown.
    texts = [b""]
    for token in tokens:
        texts = [*texts, b""] if not token else [*texts[:-1], texts[-1] + token]
    assert all(place <= sum(len(t.decode(errors="replace")) for t in texts) for place in places)


def test_half_a_character_ends_where_another_text_begins() -> None:
    offsets = Offsets()
    assert offsets.push("🦄".encode()[:2]) == 0
    offsets.end()
    assert offsets.push("🦄".encode()[2:]) == 1
