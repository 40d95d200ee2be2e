"""How long prompt and output may be. Checked before any engine is bothered."""

from collections.abc import Iterator
from contextlib import contextmanager

from diptych.core.errors import BadRequest

MAX_OUTPUT = 393_216
DEFAULT_OUTPUT = 8_192
DEFAULT_THINKING = 65_536
DEFAULT_THINKING_HARD = 131_072
HARDEST = 100
MAX_PROMPT_LOGPROBS = 65_536  # of all choices: far less than a session or a stream holds unread


def output_limit(
    prompt_len: int, asked: int | None, default: int, context: int, *, clips: bool = False
) -> int:
    """Tokens the output may have; an explicit wish is granted or refused, unless one `clips`."""
    if asked is not None and not clips:
        if prompt_len + asked > context:
            raise too_long(prompt_len, asked, context)
        return asked
    if prompt_len + 1 > context:
        raise too_long(prompt_len, 1, context)
    return min(default if asked is None else asked, context - prompt_len)


def refuse_many_logprobs(
    prompt_len: int, num_top: int, choices: int, param: str = "prompt_logprobs"
) -> None:
    """Refuse log-probabilities of a prompt that are too many to be sent in one message."""
    count = prompt_len * (num_top + 1) * choices
    if count > MAX_PROMPT_LOGPROBS:
        raise BadRequest(
            f"{param}: {count} values for {prompt_len} tokens, {num_top} alternatives and "
            f"{choices} choices; expected at most {MAX_PROMPT_LOGPROBS}",
            code="invalid_value",
            param=param,
        )


def default_output(effort: int | None) -> int:
    """Tokens an output may have when the client does not say."""
    if effort is None:
        return DEFAULT_OUTPUT
    return DEFAULT_THINKING_HARD if effort >= HARDEST else DEFAULT_THINKING


def refuse_hopeless(
    num_bytes: int, longest_token_bytes: int, asked: int | None, context: int
) -> None:
    """Refuse text that exceeds the context however it is tokenised; exact, so never wrongly."""
    at_least = -(-num_bytes // longest_token_bytes)
    if at_least >= context:
        raise too_long(at_least, asked or 1, context)


def too_long(prompt_len: int, output: int, context: int) -> BadRequest:
    """Clients recognise this text and the code, and shorten their history."""
    return BadRequest(
        f"This model's maximum context length is {context} tokens. However, you requested "
        f"{prompt_len + output} tokens ({prompt_len} in the messages, {output} in the "
        "completion). Please reduce the length of the messages or completion.",
        code="context_length_exceeded",
        param="messages",
    )


@contextmanager
def length_of(param: str) -> Iterator[None]:
    """Whatever is found too long inside was sent in this field."""
    try:
        yield
    except BadRequest as error:
        if error.code == "context_length_exceeded":
            error.param = param
        raise
