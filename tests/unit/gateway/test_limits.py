"""Lengths, exactly."""

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway import limits

CONTEXT = 1000


@pytest.mark.parametrize(
    ("effort", "default"), [(None, 8_192), (75, 65_536), (99, 65_536), (100, 131_072)]
)
def test_the_default_depends_on_how_hard_to_think(effort: int | None, default: int) -> None:
    assert limits.default_output(effort) == default


def test_the_default_is_clipped_to_what_is_left() -> None:
    assert limits.output_limit(990, None, 8192, CONTEXT) == 10
    assert limits.output_limit(CONTEXT - 1, None, 8192, CONTEXT) == 1


def test_an_explicit_limit_is_granted_to_the_last_token() -> None:
    assert limits.output_limit(990, 10, 8192, CONTEXT) == 10


@pytest.mark.parametrize(
    ("prompt_len", "asked", "total", "output"),
    [(990, 11, 1001, 11), (CONTEXT, None, 1001, 1), (CONTEXT + 1, None, 1002, 1)],
)
def test_too_much_is_refused_in_the_words_that_clients_know(
    prompt_len: int, asked: int | None, total: int, output: int
) -> None:
    with pytest.raises(BadRequest) as caught:
        limits.output_limit(prompt_len, asked, 8192, CONTEXT)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.message == (
        f"This model's maximum context length is 1000 tokens. However, you requested {total} "
        f"tokens ({prompt_len} in the messages, {output} in the completion). Please reduce the "
        "length of the messages or completion."
    )


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    limits.refuse_hopeless(999 * 8, 8, None, CONTEXT)
    with pytest.raises(BadRequest, match="1000 in the messages"):
        limits.refuse_hopeless(999 * 8 + 1, 8, None, CONTEXT)
