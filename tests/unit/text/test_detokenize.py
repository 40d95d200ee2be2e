"""No half characters, whatever the chunks."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.text.detokenize import Detokenizer


def decode(chunks: list[bytes]) -> str:
    detokenizer = Detokenizer()
    return "".join(map(detokenizer.push, chunks)) + detokenizer.finish()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.text(), st.lists(st.integers(min_value=0)))
def test_any_chunking_of_a_text_gives_the_text(text: str, places: list[int]) -> None:
    assert decode(cut(text.encode(), places)) == text


@given(st.binary(), st.lists(st.integers(min_value=0)))
def test_any_chunking_of_any_bytes_gives_the_same_text(data: bytes, places: list[int]) -> None:
    assert decode(cut(data, places)) == data.decode(errors="replace")


def test_a_character_appears_with_its_last_byte() -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.push(bytes([b])) for b in "😀".encode()] == ["", "", "", "😀"]


@pytest.mark.parametrize(("is_cut", "tail"), [(False, "\ufffd"), (True, "")])
def test_an_incomplete_character_at_the_end(is_cut: bool, tail: str) -> None:
    detokenizer = Detokenizer()
    assert detokenizer.push(b"a\xf0\x9f\x98") == "a"
    assert detokenizer.finish(cut=is_cut) == tail
