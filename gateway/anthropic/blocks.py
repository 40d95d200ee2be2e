"""The messages of a Messages request: roles, and the blocks that they are made of."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from diptych.gateway.fields import Long
from diptych.gateway.generation import STRICT
from diptych.gateway.variants import one_of, tag

UNSUPPORTED_PART = "unsupported_content_part"

_REFUSED = {
    "document": "documents are not supported; send their text as a block of type text",
    "redacted_thinking": "redacted thinking cannot be read here; leave it out",
    "server_tool_use": "tools of a server are not supported",
    "web_search_tool_result": "tools of a server are not supported",
}


class TextBlock(BaseModel):
    """Text."""

    model_config = STRICT
    type: Literal["text"]
    text: str


class EmbeddedImage(BaseModel):
    """An image in the request itself."""

    model_config = STRICT
    type: Literal["base64"]
    media_type: str
    data: str


class LinkedImage(BaseModel):
    """An image elsewhere."""

    model_config = STRICT
    type: Literal["url"]
    url: str


Source = Annotated[
    Annotated[EmbeddedImage, Tag("@base64")] | Annotated[LinkedImage, Tag("@url")],
    Discriminator(tag("type")),
    BeforeValidator(one_of(("base64", "url"), UNSUPPORTED_PART)),
]


class ImageBlock(BaseModel):
    """An image."""

    model_config = STRICT
    type: Literal["image"]
    source: Source


class ThinkingBlock(BaseModel):
    """Earlier reasoning. Its signature is ours, and not looked at."""

    model_config = STRICT
    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(BaseModel):
    """A call that the model made before."""

    model_config = STRICT
    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]


Shown = Annotated[
    Annotated[TextBlock, Tag("@text")] | Annotated[ImageBlock, Tag("@image")],
    Discriminator(tag("type")),
    BeforeValidator(
        one_of(("text", "image"), UNSUPPORTED_PART, refused=_REFUSED, refused_code=UNSUPPORTED_PART)
    ),
]


def _text_or_blocks(value: Any) -> str:
    return "@blocks" if isinstance(value, list | tuple) else "@text"


class ToolResultBlock(BaseModel):
    """What a call resulted in."""

    model_config = STRICT
    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, Tag("@text")] | Annotated[Long[Shown], Tag("@blocks")],
            Discriminator(_text_or_blocks),
        ]
        | None
    ) = None
    is_error: bool | None = None


UserBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[ImageBlock, Tag("@image")]
    | Annotated[ToolResultBlock, Tag("@tool_result")],
    Discriminator(tag("type")),
    BeforeValidator(
        one_of(
            ("text", "image", "tool_result"),
            UNSUPPORTED_PART,
            refused=_REFUSED,
            refused_code=UNSUPPORTED_PART,
        )
    ),
]
AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[ThinkingBlock, Tag("@thinking")]
    | Annotated[ToolUseBlock, Tag("@tool_use")],
    Discriminator(tag("type")),
    BeforeValidator(
        one_of(
            ("text", "thinking", "tool_use"),
            UNSUPPORTED_PART,
            refused=_REFUSED,
            refused_code=UNSUPPORTED_PART,
        )
    ),
]
Texts = Annotated[
    Annotated[str, Tag("@text")] | Annotated[Long[TextBlock], Tag("@blocks")],
    Discriminator(_text_or_blocks),
]


class UserMessage(BaseModel):
    """What the user says, and results of calls."""

    model_config = STRICT
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("@text")] | Annotated[Long[UserBlock], Tag("@blocks")],
        Discriminator(_text_or_blocks),
    ]


class AssistantMessage(BaseModel):
    """What the model answered before."""

    model_config = STRICT
    role: Literal["assistant"]
    content: Annotated[
        Annotated[str, Tag("@text")] | Annotated[Long[AssistantBlock], Tag("@blocks")],
        Discriminator(_text_or_blocks),
    ]


class SystemMessage(BaseModel):
    """Instructions between the turns."""

    model_config = STRICT
    role: Literal["system"]
    content: Texts


Message = Annotated[
    Annotated[UserMessage, Tag("@user")]
    | Annotated[AssistantMessage, Tag("@assistant")]
    | Annotated[SystemMessage, Tag("@system")],
    Discriminator(tag("role")),
    BeforeValidator(one_of(("user", "assistant", "system"), "invalid_messages", field="role")),
]
