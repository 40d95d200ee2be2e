"""Text to ids and back, on the tokenizer of the tiny golden checkpoint."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.errors import Misconfigured
from diptych.text import tokenizer
from diptych.text.image import Image
from diptych.text.markers import Marker
from diptych.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "golden" / "tiny-text"
TOKENIZER = tokenizer.load(TINY)


def spell(ids: tuple[int, ...]) -> bytes:
    return b"".join(map(TOKENIZER.token_bytes, ids))


def changed(tmp_path: Path, **fields: object) -> Path:
    document = json.loads((TINY / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(document | fields))
    return tmp_path


@given(st.text())
def test_bytes_of_the_ids_are_the_bytes_of_the_text(text: str) -> None:
    assert spell(TOKENIZER.encode([text])) == text.encode()


@given(st.lists(st.text(max_size=8)))
def test_neighbouring_texts_are_joined_before_they_are_encoded(parts: list[str]) -> None:
    assert TOKENIZER.encode(parts) == TOKENIZER.encode(["".join(parts)])


@pytest.mark.parametrize("marker", list(Marker))
def test_a_marker_that_a_user_spells_stays_text(marker: Marker) -> None:
    ids = TOKENIZER.encode([f"a{marker.value}b"])
    assert TOKENIZER.find(marker) not in ids
    assert spell(ids) == f"a{marker.value}b".encode()


def test_a_marker_that_the_renderer_puts_is_one_id() -> None:
    bos, user = TOKENIZER.find(Marker.BOS), TOKENIZER.find(Marker.USER)
    hello = TOKENIZER.encode(["Hello"])
    assert TOKENIZER.encode([Marker.BOS, Marker.USER, "Hello"]) == (bos, user, *hello)


def test_ids_without_text_have_no_bytes() -> None:
    for token_id in (-1, TOKENIZER.vocab_size, TOKENIZER.find(Marker.USER)):
        assert token_id is not None
        assert TOKENIZER.token_bytes(token_id) == b""


def test_every_token_has_a_spelling_for_people() -> None:
    assert TOKENIZER.spelling(TOKENIZER.find(Marker.USER) or 0) == Marker.USER.value.encode()
    (hello,) = TOKENIZER.encode(["e"])
    assert TOKENIZER.spelling(hello) == b"e"


def test_ids_and_images_are_put_as_they_are() -> None:
    size = TOKENIZER.vocab_size
    ids = TOKENIZER.encode(["a", 7, Image(1, 1), "b"])
    (a,), (b,) = TOKENIZER.encode(["a"]), TOKENIZER.encode(["b"])
    assert ids == (a, 7, size, size + 2, size + 3, size + 4, b)


def test_no_token_is_longer_than_the_bound() -> None:
    lengths = [len(TOKENIZER.token_bytes(i)) for i in range(TOKENIZER.vocab_size)]
    assert max(lengths) == TOKENIZER.longest_token_bytes


def test_an_optional_marker_that_is_absent_is_text(tmp_path: Path) -> None:
    added = json.loads((TINY / "tokenizer.json").read_text())["added_tokens"]
    kept = [token for token in added if token["content"] != Marker.DSML.value]
    loaded = tokenizer.load(changed(tmp_path, added_tokens=kept))
    assert loaded.find(Marker.DSML) is None
    assert loaded.encode(["<", Marker.DSML]) == loaded.encode(["<" + Marker.DSML.value])


def test_a_file_without_a_required_marker_is_refused_by_the_markers_name(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"<｜User｜>.*</think>"):
        tokenizer.load(changed(tmp_path, added_tokens=[]))


def test_a_folder_without_a_tokenizer_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"tokenizer\.json does not exist"):
        tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"added_tokens": []}'])
def test_a_damaged_file_is_refused_by_its_path(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(Misconfigured, match=r"tokenizer\.json is not a usable tokenizer"):
        tokenizer.load(tmp_path)


def test_truncation_and_padding_of_the_file_have_no_effect(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    loaded: Tokenizer = tokenizer.load(changed(tmp_path, truncation=truncation))
    assert loaded.encode(["Hello world"]) == TOKENIZER.encode(["Hello world"])
