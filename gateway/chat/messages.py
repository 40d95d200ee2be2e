"""The messages of a request, as a client sends them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from diptych.gateway.chat.tasks import TaskName
from diptych.gateway.fields import Long
from diptych.gateway.generation import STRICT
from diptych.text import pyjson
from diptych.text.chat import Message, Role
from diptych.text.image import Image
from diptych.text.tools import ToolCall

NO_IMAGES: Iterator[Image] = iter(())

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


def _located(value: Any) -> Any:
    """Some clients send the URL alone."""
    return {"url": value} if isinstance(value, str) else value


class ImageUrl(BaseModel):
    """Where an image is, and how closely it must be looked at."""

    model_config = STRICT
    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(BaseModel):
    """An image."""

    model_config = STRICT
    type: Literal["image_url"]
    image_url: Annotated[ImageUrl, BeforeValidator(_located)]


Part = Annotated[
    Annotated[TextPart, Tag("@text")] | Annotated[ImagePart, Tag("@image_url")],
    Discriminator(_by("type")),
]
OwnPart = Annotated[
    Annotated[TextPart, Tag("@text")] | Annotated[RefusalPart, Tag("@refusal")],
    Discriminator(_by("type")),
]


def _text_or_parts(value: Any) -> str:
    return "@parts" if isinstance(value, list | tuple) else "@text"


Content = Annotated[
    Annotated[str, Tag("@text")] | Annotated[Long[Part], Tag("@parts")],
    Discriminator(_text_or_parts),
]
OwnContent = Annotated[
    Annotated[str, Tag("@text")] | Annotated[Long[OwnPart], Tag("@parts")],
    Discriminator(_text_or_parts),
]
PlainContent = Annotated[
    Annotated[str, Tag("@text")] | Annotated[Long[TextPart], Tag("@parts")],
    Discriminator(_text_or_parts),
]


class SystemMessage(BaseModel):
    """Instructions. A developer message is one."""

    model_config = STRICT
    role: Literal["system", "developer"]
    content: Content

    def read(self, images: Iterator[Image] = NO_IMAGES) -> Message:
        """`images`: the sizes of its images come next."""
        return Message(Role.SYSTEM, _read(self.content, images))


class UserMessage(BaseModel):
    """What the user says. The last one may name a quick instruction."""

    model_config = STRICT
    role: Literal["user"]
    content: Content
    task: TaskName | None = None

    def read(self, images: Iterator[Image] = NO_IMAGES) -> Message:
        return Message(Role.USER, _read(self.content, images))


def _arguments(value: Any) -> Any:
    """Some clients send the object itself."""
    return pyjson.dumps(value) if isinstance(value, dict) else value


class CalledFunction(BaseModel):
    """Arguments are what the model wrote, not always JSON."""

    model_config = STRICT
    name: str = Field(min_length=1)
    arguments: Annotated[str, BeforeValidator(_arguments)]


class CallMessage(BaseModel):
    """A call that the model made before."""

    model_config = STRICT
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction

    def read(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)


class AssistantMessage(BaseModel):
    """What the model answered before."""

    model_config = STRICT
    role: Literal["assistant"]
    content: OwnContent | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Long[CallMessage] | None = None
    prefix: bool | None = None

    def model_post_init(self, context: object) -> None:
        has_content = self.content is not None or self.refusal is not None
        if not has_content and (self.prefix or not self.tool_calls):
            raise PydanticCustomError("invalid_messages", "expected content")

    def read(self, images: Iterator[Image] = NO_IMAGES) -> Message:
        content = self.content if self.content is not None else self.refusal
        reasoning = self.reasoning_content
        if reasoning is None:
            reasoning = self.reasoning or ""
        calls = tuple(call.read() for call in self.tool_calls or ())
        is_prefix = bool(self.prefix)
        return Message(Role.ASSISTANT, _join(content or ""), reasoning, calls, is_prefix=is_prefix)


class ToolMessage(BaseModel):
    """What a call resulted in."""

    model_config = STRICT
    role: Literal["tool"]
    tool_call_id: str
    content: Content

    def read(self, images: Iterator[Image] = NO_IMAGES) -> Message:
        return Message(Role.TOOL, _read(self.content, images), call_id=self.tool_call_id)


class ReminderMessage(BaseModel):
    """A text that stands in its place, before the answer's header."""

    model_config = STRICT
    role: Literal["latest_reminder"]
    content: PlainContent

    def read(self, images: Iterator[Image] = NO_IMAGES) -> Message:
        return Message(Role.REMINDER, _join(self.content))


ChatMessage = Annotated[
    Annotated[SystemMessage, Tag("@system")]
    | Annotated[SystemMessage, Tag("@developer")]
    | Annotated[UserMessage, Tag("@user")]
    | Annotated[AssistantMessage, Tag("@assistant")]
    | Annotated[ToolMessage, Tag("@tool")]
    | Annotated[ReminderMessage, Tag("@latest_reminder")],
    Discriminator(_by("role")),
]


def image_parts(message: ChatMessage) -> Iterator[tuple[int, ImagePart]]:
    """Images of a message, each with the number of its part."""
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            if isinstance(part, ImagePart):
                yield index, part


def _read(content: str | list[Part], images: Iterator[Image]) -> str | tuple[str | Image, ...]:
    if isinstance(content, str):
        return content
    texts = [part for part in content if isinstance(part, TextPart)]
    if len(texts) == len(content):
        return _join(texts)
    return tuple(p.text if isinstance(p, TextPart) else next(images) for p in content)


def _join(content: str | Sequence[TextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    texts = (part.text if isinstance(part, TextPart) else part.refusal for part in content)
    return "\n\n".join(texts)
