"""Token ids that a client names: whether they are any, and what they spell."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import PydanticCustomError

from diptych.core.errors import BadRequest
from diptych.text.tokenizer import Tokenizer


def read_ids(value: Any) -> tuple[int, ...]:
    """JSON integers, or numbers that are integral; whether the vocabulary has them is not known."""
    if not isinstance(value, list):
        raise PydanticCustomError("invalid_type", "expected a list of token ids")
    if all(type(each) is int for each in value):
        return tuple(value)
    if all(type(each) is int or (type(each) is float and each.is_integer()) for each in value):
        return tuple(map(int, value))
    raise PydanticCustomError("invalid_type", "expected token ids, which are integers")


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """BadRequest if one of them is no token that a client may name: an image's are not."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        at = next(i for i, each in enumerate(ids) if not 0 <= each < vocab_size)
        raise BadRequest(
            f"{param}[{at}]: expected a token id from 0 to {vocab_size - 1}", param=param
        )


def spell(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Their text, special tokens as they are written; what is no UTF-8 becomes U+FFFD."""
    return b"".join(map(tokenizer.spelling, ids)).decode(errors="replace")
