"""The input of a Responses request: a conversation in items."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from diptych.gateway.fields import Long
from diptych.gateway.generation import STRICT
from diptych.gateway.variants import one_of, tag

_HOSTED = "tools of a server are not supported"
_REFUSED_ITEMS = {
    "item_reference": "nothing is stored here to refer to; send the item itself",
    "code_interpreter_call": _HOSTED,
    "computer_call": _HOSTED,
    "computer_call_output": _HOSTED,
    "custom_tool_call": "tools without a schema are not supported",
    "custom_tool_call_output": "tools without a schema are not supported",
    "file_search_call": _HOSTED,
    "image_generation_call": _HOSTED,
    "local_shell_call": _HOSTED,
    "local_shell_call_output": _HOSTED,
    "mcp_call": _HOSTED,
}
_REFUSED_PARTS = {
    "input_audio": "audio is not supported",
    "input_file": "files are not supported; send their text as a part of type input_text",
}


class TextPart(BaseModel):
    """Text of anybody's."""

    model_config = STRICT
    type: Literal["input_text", "output_text"]
    text: str

    def as_chat(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class RefusalPart(BaseModel):
    """An earlier refusal of the assistant."""

    model_config = STRICT
    type: Literal["refusal"]
    refusal: str

    def as_chat(self) -> dict[str, Any]:
        return {"type": "refusal", "refusal": self.refusal}


class ImagePart(BaseModel):
    """An image, by its address or in the address itself."""

    model_config = STRICT
    type: Literal["input_image"]
    image_url: str
    detail: str | None = None

    def as_chat(self) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": self.image_url, "detail": self.detail}}


Part = Annotated[
    Annotated[TextPart, Tag("@input_text")]
    | Annotated[TextPart, Tag("@output_text")]
    | Annotated[RefusalPart, Tag("@refusal")]
    | Annotated[ImagePart, Tag("@input_image")],
    Discriminator(tag("type")),
    BeforeValidator(
        one_of(
            ("input_text", "output_text", "input_image", "refusal"),
            "unsupported_content_part",
            refused=_REFUSED_PARTS,
            refused_code="unsupported_content_part",
        )
    ),
]


def _text_or_list(value: Any) -> str:
    return "@list" if isinstance(value, list | tuple) else "@text"


Content = Annotated[
    Annotated[str, Tag("@text")] | Annotated[Long[Part], Tag("@list")],
    Discriminator(_text_or_list),
]


class MessageItem(BaseModel):
    """What somebody said. A developer is the system."""

    model_config = STRICT
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class ReasoningText(BaseModel):
    """Reasoning itself, not a summary of it."""

    model_config = STRICT
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(BaseModel):
    """Earlier reasoning. Summaries are not what the model thought, and not looked at."""

    model_config = STRICT
    type: Literal["reasoning"]
    content: Long[ReasoningText] | None = None


class CallItem(BaseModel):
    """A call that the model made before."""

    model_config = STRICT
    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: str | None = None
    arguments: str


class ResultItem(BaseModel):
    """What a call resulted in."""

    model_config = STRICT
    type: Literal["function_call_output"]
    call_id: str
    output: Content


class WebSearchItem(BaseModel):
    """A search that a server made before: left out of the prompt."""

    model_config = STRICT
    type: Literal["web_search_call"]


Item = Annotated[
    Annotated[MessageItem, Tag("@message")]
    | Annotated[ReasoningItem, Tag("@reasoning")]
    | Annotated[CallItem, Tag("@function_call")]
    | Annotated[ResultItem, Tag("@function_call_output")]
    | Annotated[WebSearchItem, Tag("@web_search_call")],
    Discriminator(tag("type", "message")),
    BeforeValidator(
        one_of(
            ("message", "reasoning", "function_call", "function_call_output", "web_search_call"),
            "invalid_messages",
            default="message",
            refused=_REFUSED_ITEMS,
        )
    ),
]
Input = Annotated[
    Annotated[str, Tag("@text")] | Annotated[Long[Item], Tag("@list")],
    Discriminator(_text_or_list),
]
