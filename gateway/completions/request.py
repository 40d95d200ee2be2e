"""The body of a completion: every field that works, and what becomes of those that do not."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from diptych.core.errors import BadRequest
from diptych.core.sampling import MAX_TOP_LOGPROBS
from diptych.gateway.constraint import conflict
from diptych.gateway.fields import Int, explain, given_fields, refuse_unsupported
from diptych.gateway.generation import NO_EFFECT, GenerationRequest
from diptych.gateway.limits import MAX_OUTPUT
from diptych.gateway.policy import Policy
from diptych.gateway.vocabulary import read_ids

MAX_PROMPTS = 256
MAX_TOTAL_CHOICES = 1024

Written = str | tuple[int, ...]
"""A prompt as the client has it: text, or token ids."""


def _prompts(value: Any) -> tuple[Written, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise PydanticCustomError("invalid_type", "expected text, token ids, or a list of either")
    if not value:
        raise PydanticCustomError("invalid_value", "expected at least one prompt, or one token id")
    if isinstance(value[0], str | list) and len(value) > MAX_PROMPTS:
        raise PydanticCustomError("invalid_value", f"expected at most {MAX_PROMPTS} prompts")
    if all(isinstance(each, str) for each in value):
        return tuple(value)
    if not isinstance(value[0], list):
        return (read_ids(value),)
    if not all(value):
        raise PydanticCustomError("invalid_value", "expected at least one token id in each prompt")
    return tuple(map(read_ids, value))


_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
_Ids = Annotated[list[int], Field(min_length=1)]
_IdLists = Annotated[list[_Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
Prompts = Annotated[
    tuple[Written, ...],
    PlainValidator(_prompts, json_schema_input_type=str | _Texts | _Ids | _IdLists),
]


class CompletionRequest(GenerationRequest):
    """A null is an absent field. Properties give the values that hold after all defaults."""

    prompt: Prompts
    suffix: str | None = None
    max_tokens: Int | None = Field(None, ge=0, le=MAX_OUTPUT)
    logprobs: Int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False
    best_of: Int | None = None
    add_special_tokens: bool = True
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None

    @property
    def top(self) -> int | None:
        """Alternatives to report with each token; None: no log-probabilities at all."""
        return self.logprobs

    @property
    def prompt_top(self) -> int | None:
        """The same of the prompt's tokens: because of an echo, or asked for by themselves."""
        wishes = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((wish for wish in wishes if wish is not None), default=None)

    @property
    def is_scored_only(self) -> bool:
        """Whether the prompt is all that matters."""
        return self.max_tokens == 0

    def check(self, policy: Policy | None = None) -> None:
        """BadRequest if fields, each fine by itself, do not fit together or are too much here."""
        GenerationRequest.check(self, policy)
        if len(self.prompt) * self.n > MAX_TOTAL_CHOICES:
            message = f"n: expected at most {MAX_TOTAL_CHOICES} choices of all prompts together"
            raise BadRequest(message, param="n")
        if self.best_of is not None and self.best_of != self.n:
            message = "best_of is n, or absent: no choice is generated to be dropped"
            raise BadRequest(message, code="unsupported_parameter", param="best_of")
        if self.is_scored_only and not self.echo and self.prompt_logprobs is None:
            message = "max_tokens: expected at least 1, or 0 with echo or prompt_logprobs"
            raise BadRequest(message, param="max_tokens")
        if self.suffix is not None:
            self._check_hole()

    def _check_hole(self) -> None:
        if not all(isinstance(prompt, str) for prompt in self.prompt):
            message = "prompt: expected text, or a list of texts, with a suffix"
            raise BadRequest(message, code="invalid_type", param="prompt")
        if self.echo:
            raise conflict("echo and suffix do not go together", "echo")
        if self.logprobs is not None:
            raise conflict("logprobs and suffix do not go together", "logprobs")
        if self.truncate_prompt_tokens is not None:
            raise conflict("a text around a hole is not cut", "truncate_prompt_tokens")


# Known fields that are not supported, each with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "data_parallel_rank": (),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "lora": (),
    "messages": (),
    "prompt_embeds": (),
    "thinking_token_budget": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "use_beam_search": (False,),
}
_HINTS = {
    "guided_choice": "use structured_outputs.choice",
    "guided_decoding_backend": "a constraint has the same meaning with each of ours",
    "guided_grammar": "use structured_outputs.grammar",
    "guided_json": "use structured_outputs.json",
    "guided_regex": "use structured_outputs.regex",
    "guided_whitespace_pattern": "use structured_outputs.whitespace_pattern",
    "messages": "use /v1/chat/completions",
    "tool_choice": "use /v1/chat/completions",
    "tools": "use /v1/chat/completions",
}


def read_completion(
    body: Mapping[str, Any], policy: Policy | None = None
) -> tuple[CompletionRequest, list[str]]:
    """The request, and the names of fields that nobody knows; BadRequest names what is wrong."""
    policy = policy or Policy()
    given = given_fields(body)
    refuse_unsupported(given, _UNSUPPORTED, _HINTS)
    known = CompletionRequest.model_fields.keys() | _UNSUPPORTED.keys() | NO_EFFECT
    unknown = [name for name in given if name not in known]
    try:
        request = CompletionRequest.model_validate(given).under(policy)
    except ValidationError as error:
        raise explain(error) from None
    request.check(policy)
    return request, unknown
