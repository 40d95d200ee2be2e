"""What responses look like. For the description alone: nothing is checked with it."""

from typing import Any, Literal

from pydantic import BaseModel, Field

Status = Literal["completed", "incomplete"]


class Alternative(BaseModel):
    """One token, or an alternative to it."""

    token: str
    logprob: float
    bytes: list[int]


class Shown(Alternative):
    """One token that is shown, with the best alternatives."""

    top_logprobs: list[Alternative]


class OutputText(BaseModel):
    """What the model said."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(max_length=0)
    logprobs: list[Shown]


class MessageOutput(BaseModel):
    """A message of the model's."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Status
    phase: Literal["commentary", "final_answer"]
    content: list[OutputText]


class ThoughtText(BaseModel):
    """What the model thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningOutput(BaseModel):
    """Its reasoning."""

    type: Literal["reasoning"]
    id: str
    status: Status
    summary: list[Any] = Field(max_length=0)
    content: list[ThoughtText]
    encrypted_content: str = ""


class CallOutput(BaseModel):
    """A call that it wants made."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    namespace: str = ""
    arguments: str
    status: Status


class InputDetails(BaseModel):
    """Of `input_tokens`."""

    cached_tokens: int = Field(ge=0)
    cache_write_tokens: int = Field(ge=0)


class OutputDetails(BaseModel):
    """Of `output_tokens`."""

    reasoning_tokens: int = Field(ge=0)


class ResponseUsage(BaseModel):
    """Tokens of each kind."""

    input_tokens: int = Field(ge=0)
    input_tokens_details: InputDetails
    output_tokens: int = Field(ge=0)
    output_tokens_details: OutputDetails
    total_tokens: int = Field(ge=0)


class Incomplete(BaseModel):
    """Why the response is no more than this."""

    reason: Literal["max_output_tokens"]


class ResponseReply(BaseModel):
    """The answer to a conversation, with what of the request it repeats."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    background: bool
    error: None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[ReasoningOutput | MessageOutput | CallOutput]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage
    user: str | None
