"""What Anthropic-style answers look like. For the description alone: nothing is checked with it."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class TheirProblem(BaseModel):
    """What went wrong, in words."""

    type: str
    message: str


class TheirErrorReply(BaseModel):
    """The body of every answer from 400 up."""

    type: Literal["error"]
    error: TheirProblem
    request_id: str


class ThinkingBlock(BaseModel):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class TextBlock(BaseModel):
    """What it said."""

    type: Literal["text"]
    text: str


class ToolUseBlock(BaseModel):
    """A call that it wants made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(BaseModel):
    """Tokens of each kind."""

    input_tokens: int = Field(ge=0)
    cache_creation_input_tokens: int = Field(ge=0)
    cache_read_input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)


class MessageReply(BaseModel):
    """The answer to a conversation."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextBlock | ToolUseBlock]
    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
    ]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """How long a prompt would be."""

    input_tokens: int = Field(ge=0)
