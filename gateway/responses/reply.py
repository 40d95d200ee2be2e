"""What a response looks like. For the description alone: nothing is checked with it."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class ReasoningText(BaseModel):
    """What the model thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningOutput(BaseModel):
    """An item of thinking."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    content: list[ReasoningText]
    status: Literal["completed", "incomplete"]


class OutputText(BaseModel):
    """What it said."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class MessageOutput(BaseModel):
    """An item of the answer."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    content: list[OutputText]
    status: Literal["completed", "incomplete"]
    phase: Literal["commentary", "final_answer"]


class CallOutput(BaseModel):
    """A call that it wants made."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["completed", "incomplete"]


class CachedTokens(BaseModel):
    """Of `input_tokens`."""

    cached_tokens: int = Field(ge=0)


class ThoughtTokens(BaseModel):
    """Of `output_tokens`."""

    reasoning_tokens: int = Field(ge=0)


class ResponseUsage(BaseModel):
    """Tokens of each kind."""

    input_tokens: int = Field(ge=0)
    input_tokens_details: CachedTokens
    output_tokens: int = Field(ge=0)
    output_tokens_details: ThoughtTokens
    total_tokens: int = Field(ge=0)


class Incomplete(BaseModel):
    """Why there is no more."""

    reason: Literal["max_output_tokens"]


class ResponseReply(BaseModel):
    """The answer to a conversation, and fields of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: Incomplete | None
    model: str
    output: list[ReasoningOutput | MessageOutput | CallOutput]
    usage: ResponseUsage
