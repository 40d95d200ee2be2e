"""Raw prompts and holes."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from diptych.text.completion import fill, raw
from diptych.text.markers import Marker
from diptych.text.tokenizer import Tokenizer

BOS = Marker.BOS.value


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> HfTokenizer:
    """The tokenizer as the file has it, with its whole added vocabulary."""
    return HfTokenizer.from_file(str(checkpoint / "tokenizer.json"))


SPELLINGS = st.sampled_from(
    [marker.value for marker in Marker]
    + ["<|EOT|>", "<｜tool▁sep｜>", "</dsml:", "<dsml:", "<", "｜"]
)


@settings(deadline=None, max_examples=100)
@given(st.lists(SPELLINGS | st.text(max_size=6), max_size=8).map("".join))
def test_special_tokens_in_a_raw_prompt_are_those_of_the_file(
    real: Tokenizer, plain: HfTokenizer, text: str
) -> None:
    ids = real.encode(raw(text, real, bos=False))
    assert list(ids) == plain.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("text", "first"), [("", [0]), ("a", [0, 66]), (BOS + "a", [0, 66]), (BOS * 2, [0, 0])]
)
def test_a_raw_prompt_begins_with_bos_once(real: Tokenizer, text: str, first: list[int]) -> None:
    ids = list(real.encode(raw(text, real)))
    assert len(ids) == len(first)
    assert ids[0] == 0
    assert ids.count(0) == first.count(0)
    assert list(real.encode(raw(text, real, bos=False))) == ids[not text.startswith(BOS) :]


def test_special_tokens_can_be_text_in_a_raw_prompt(real: Tokenizer) -> None:
    ids = real.encode(raw(BOS + "<think>", real, special=False))
    assert ids.count(0) == 1
    assert real.find(Marker.THINK) not in ids


def test_nothing_around_a_hole_is_a_special_token(real: Tokenizer) -> None:
    ids = real.encode(fill("def f():<｜fim▁hole｜>", "<think>"))
    special = [i for i in ids if i < 3 or i >= 128_000]
    assert special == [0, 128801, 128800, 128802]
    assert ids[-1] == 128802
    assert real.encode(fill("a", ""))[-2:] == (128800, 128802)
