"""What OpenAI-style answers look like. For the description alone: nothing is checked with these."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """What went wrong, in words and in a code."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str


class ErrorReply(BaseModel):
    """The body of every answer from 400 up."""

    error: Problem


class PromptDetails(BaseModel):
    """Of `prompt_tokens`."""

    cached_tokens: int = Field(ge=0)


class CompletionDetails(BaseModel):
    """Of `completion_tokens`."""

    reasoning_tokens: int = Field(ge=0)


class Usage(BaseModel):
    """Tokens of each kind."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    prompt_cache_hit_tokens: int = Field(ge=0)
    prompt_cache_miss_tokens: int = Field(ge=0)


class PromptToken(BaseModel):
    """One alternative at one place of a prompt."""

    logprob: float
    rank: int = Field(ge=1)
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
StopReason = str | int | None


class Called(BaseModel):
    """Arguments are JSON, unless the answer was cut."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the model wants made."""

    id: str
    type: Literal["function"]
    function: Called


class Answered(BaseModel):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = []


class TokenLogprob(BaseModel):
    """One token, or an alternative to it."""

    token: str
    logprob: float
    bytes: list[int]


class ShownLogprob(TokenLogprob):
    """One token that is shown, with the best alternatives."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """Of the tokens that are shown."""

    content: list[ShownLogprob]
    refusal: None
    reasoning_content: list[ShownLogprob] = []


class ChatChoice(BaseModel):
    """One answer."""

    index: int = Field(ge=0)
    message: Answered
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: StopReason
    token_ids: list[int] = []


class ChatCompletion(BaseModel):
    """Answers to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice] = Field(min_length=1)
    usage: Usage
    prompt_logprobs: PromptLogprobs = []


class TextLogprobs(BaseModel):
    """Of all tokens, as parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(BaseModel):
    """One text."""

    index: int = Field(ge=0)
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: StopReason
    token_ids: list[int] = []
    prompt_logprobs: PromptLogprobs = []


class TextCompletion(BaseModel):
    """How prompts go on."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice] = Field(min_length=1)
    usage: Usage


class Tokens(BaseModel):
    """The ids of a prompt."""

    count: int = Field(ge=0)
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Spelled(BaseModel):
    """The text of ids."""

    prompt: str


class Part(BaseModel):
    """A piece of a prompt."""

    type: Literal["special", "text", "image"]
    text: str


class Rendered(BaseModel):
    """A prompt as the model reads it."""

    prompt: str
    token_ids: list[int]
    segments: list[Part]


class Model(BaseModel):
    """A model by one of its names."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class Models(BaseModel):
    """Those that the key may use."""

    object: Literal["list"]
    data: list[Model]


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Requests can be served."""

    status: Literal["ready"]


class Reason(BaseModel):
    """Why not, and because of whom."""

    component: str
    reason: str


class NotReady(BaseModel):
    """They cannot, now."""

    status: Literal["not_ready"]
    reasons: list[Reason] = Field(min_length=1)


class Version(BaseModel):
    """What runs."""

    version: str
    model: str
    api: str


class Document(BaseModel):
    """This description."""

    openapi: Literal["3.1.0"]
    info: dict[str, Any]
    paths: dict[str, Any]
