"""The spelling of keys."""

import re

from hypothesis import given
from hypothesis import strategies as st

from diptych.gateway.tenancy.credential import ALPHABET, Credential, issue, parse


def test_a_key_has_the_documented_form() -> None:
    text = issue().text
    assert re.fullmatch(r"sk-[0-9A-Za-z]{12}-[0-9A-Za-z]{49}", text)
    assert issue().text != text


def test_what_is_issued_is_read_back() -> None:
    for _ in range(50):
        credential = issue()
        assert parse(credential.text) == credential


def test_a_rotated_key_keeps_its_id() -> None:
    first = issue()
    second = issue(first.key_id)
    assert second.key_id == first.key_id
    assert second.secret != first.secret


@given(st.integers(0, 64), st.sampled_from(ALPHABET))
def test_one_wrong_character_is_noticed_without_a_look_up(place: int, char: str) -> None:
    text = Credential("A" * 12, "b" * 43).text
    wrong = text[:place] + char + text[place + 1 :]
    assert parse(wrong) is None or wrong == text


@given(st.text(max_size=80))
def test_other_texts_are_no_keys(text: str) -> None:
    assert parse(text) is None


def test_only_a_keyed_hash_and_the_last_characters_are_kept() -> None:
    credential = issue()
    digest = credential.digest(b"pepper")
    assert len(digest) == 32
    assert digest != credential.digest(b"another")
    assert credential.text.endswith(credential.last)
    assert len(credential.last) == 4
    assert credential.secret not in repr(credential)
