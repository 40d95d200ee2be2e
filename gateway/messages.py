"""The messages of a request, as a client sends them."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Tag
from pydantic_core import PydanticCustomError

from diptych.text.chat import Message, Role

STRICT = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

# Tags of unions begin with @: `fields.py` leaves them out of the path that a client reads.


def _by(field: str) -> Callable[[Any], str]:
    def tag(value: Any) -> str:
        found = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
        return f"@{found}" if isinstance(found, str) else "@"

    return tag


class TextPart(BaseModel):
    """Text."""

    model_config = STRICT
    type: Literal["text"]
    text: str


class RefusalPart(BaseModel):
    """An earlier refusal of the assistant: text, too."""

    model_config = STRICT
    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[TextPart, Tag("@text")] | Annotated[RefusalPart, Tag("@refusal")],
    Discriminator(_by("type")),
]


def _text_or_parts(value: Any) -> str:
    return "@parts" if isinstance(value, list | tuple) else "@text"


Content = Annotated[
    Annotated[str, Tag("@text")] | Annotated[list[Part], Tag("@parts")],
    Discriminator(_text_or_parts),
]


class SystemMessage(BaseModel):
    """Instructions. A developer message is one."""

    model_config = STRICT
    role: Literal["system", "developer"]
    content: Content

    def read(self) -> Message:
        return Message(Role.SYSTEM, _join(self.content))


class UserMessage(BaseModel):
    """What the user says."""

    model_config = STRICT
    role: Literal["user"]
    content: Content

    def read(self) -> Message:
        return Message(Role.USER, _join(self.content))


class AssistantMessage(BaseModel):
    """What the model answered before."""

    model_config = STRICT
    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    prefix: bool | None = None

    def model_post_init(self, context: object) -> None:
        if self.tool_calls:
            raise _unsupported("tool_calls")
        if self.prefix:
            raise _unsupported("prefix")
        if self.content is None and self.refusal is None:
            raise PydanticCustomError("invalid_messages", "expected content")

    def read(self) -> Message:
        content = self.content if self.content is not None else self.refusal
        reasoning = self.reasoning_content
        if reasoning is None:
            reasoning = self.reasoning or ""
        return Message(Role.ASSISTANT, _join(content or ""), reasoning)


ChatMessage = Annotated[
    Annotated[SystemMessage, Tag("@system")]
    | Annotated[SystemMessage, Tag("@developer")]
    | Annotated[UserMessage, Tag("@user")]
    | Annotated[AssistantMessage, Tag("@assistant")],
    Discriminator(_by("role")),
]


def _join(content: str | list[TextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    texts = (part.text if isinstance(part, TextPart) else part.refusal for part in content)
    return "\n\n".join(texts)


def _unsupported(field: str) -> PydanticCustomError:
    return PydanticCustomError(
        "unsupported_parameter", "{field} is not supported", {"field": field}
    )
