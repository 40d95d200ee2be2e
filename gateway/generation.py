"""Fields that every OpenAI-style body has which asks for output, and what their values mean."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from diptych.core.errors import BadRequest
from diptych.core.sampling import (
    MAX_ALLOWED_TOKENS,
    MAX_BIAS,
    MAX_BIASES,
    MAX_STOP_TOKENS,
    MAX_TOP_LOGPROBS,
)
from diptych.gateway.fields import Int
from diptych.gateway.limits import MAX_OUTPUT
from diptych.gateway.policy import Policy

STRICT = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

MAX_CHOICES = 128  # of any operator; the policy usually says less
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_BAD_WORDS = 1000
MAX_BAD_WORD_CHARS = 1000
MAX_USER_BYTES = 512
ALL_THAT_FIT = -1  # of a prompt's tokens

# Known fields that are accepted and change nothing; the first take any value.
NO_EFFECT = frozenset({"metadata", "service_tier", "store", "verbosity"}) | {
    "prompt_cache_key", "request_id", "rid", "safety_identifier",
}  # fmt: skip


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _biases(value: Any) -> Any:
    """JSON has no keys but strings; they are not repeated in what is said about them."""
    if not isinstance(value, dict):
        return value
    is_short = len(value) <= MAX_BIASES  # or it is not looked at
    are_tokens = is_short and all(
        key.isascii() and key.isdecimal() and len(key) < 10 for key in value
    )
    are_biases = is_short and all(
        isinstance(bias, int | float)
        and not isinstance(bias, bool)
        and -MAX_BIAS <= bias <= MAX_BIAS
        for bias in value.values()
    )
    if not are_tokens or not are_biases:
        raise PydanticCustomError(
            "invalid_value",
            f"expected at most {MAX_BIASES} token ids with numbers from -100 to 100",
        )
    return {int(key): float(bias) for key, bias in value.items()}


def _not_nothing(value: int) -> int:
    if value == 0:
        raise PydanticCustomError("invalid_value", "expected a positive integer, or -1")
    return value


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopList = Annotated[list[Stop], Field(max_length=MAX_STOPS)]
Stops = Annotated[StopList, BeforeValidator(_one_or_many, json_schema_input_type=Stop | StopList)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
TokenId = Annotated[Int, Field(ge=0, lt=2**31)]
Biases = Annotated[dict[int, float], BeforeValidator(_biases)]
NumKept = Annotated[Int, Field(ge=ALL_THAT_FIT, lt=2**31), AfterValidator(_not_nothing)]
OutputLimit = Annotated[Int, Field(ge=1, le=MAX_OUTPUT)]


class StreamOptions(BaseModel):
    """What a stream tells besides the text."""

    model_config = STRICT
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(BaseModel):
    """A null is an absent field. Properties give the values that hold after all defaults."""

    model_config = STRICT
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: Int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stops | None = None
    n: Int = Field(1, ge=1, le=MAX_CHOICES)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=2)
    logit_bias: Biases = {}
    prompt_logprobs: Int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    min_tokens: Int = Field(0, ge=0, le=MAX_OUTPUT)
    bad_words: list[BadWord] = Field([], max_length=MAX_BAD_WORDS)
    allowed_token_ids: list[TokenId] | None = Field(
        None, min_length=1, max_length=MAX_ALLOWED_TOKENS
    )
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] = Field([], max_length=MAX_STOP_TOKENS)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    truncate_prompt_tokens: NumKept | None = None  # the last so many are kept
    user_id: str = ""
    user: str | None = None  # user_id, if the operator says so
    cache_salt: str = Field("", min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")
    priority: Int = Field(0, ge=-(2**63), lt=2**63)  # above 0: so many classes less urgent
    # Accepted; they change nothing.
    request_id: str | None = None
    rid: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def top(self) -> int | None:
        """Alternatives to report with each token; None: no log-probabilities at all."""
        raise NotImplementedError

    @property
    def has_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_running_usage(self) -> bool:
        """Whether each chunk of a stream tells the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def under(self, policy: Policy) -> Self:
        """The same request as the operator wants it to be understood."""
        if policy.map_user_to_user_id and self.user and not self.user_id:
            return self.model_copy(update={"user_id": self.user})
        return self

    def check(self, policy: Policy | None = None) -> None:
        """BadRequest if fields, each fine by itself, do not fit together or are too much here."""
        if self.stream_options is not None and not self.stream:
            message = "stream_options are allowed with stream: true only"
            raise BadRequest(message, code="conflicting_parameters", param="stream_options")
        if len(self.user_id.encode()) > MAX_USER_BYTES:
            message = f"user_id: expected at most {MAX_USER_BYTES} bytes"
            raise BadRequest(message, param="user_id")
        max_n = (policy or Policy()).max_n
        if self.n > max_n:
            raise BadRequest(f"n: expected at most {max_n}", param="n")
