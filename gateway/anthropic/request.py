"""The body of a Messages request: its fields, and the chat request that they mean."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from diptych.core.errors import BadRequest
from diptych.gateway.anthropic.blocks import Message, SystemMessage, Texts, UserMessage
from diptych.gateway.anthropic.conversation import Conversation
from diptych.gateway.fields import Int, Long, explain, given_fields, refuse_unsupported
from diptych.gateway.generation import STRICT
from diptych.gateway.limits import MAX_OUTPUT
from diptych.gateway.translation import EXTENSIONS, Names, Translation
from diptych.gateway.variants import one_of


class Metadata(BaseModel):
    """Whose request it is."""

    model_config = STRICT
    user_id: str | None = None


class Thinking(BaseModel):
    """A budget is not kept."""

    model_config = STRICT
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Int | None = Field(None, ge=0)


class AnswerFormat(BaseModel):
    """The schema of the answer."""

    model_config = STRICT
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    """How hard to think, and what the answer shall be. Chat requests know the efforts."""

    model_config = STRICT
    effort: Any = None
    format: AnswerFormat | None = None


class Tool(BaseModel):
    """A tool of the client's. There are no others."""

    model_config = STRICT
    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "strict": self.strict}
        return {"type": "function", "function": {**function, "parameters": self.input_schema}}


class ToolChoice(BaseModel):
    """Whether to call, and what."""

    model_config = STRICT
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def as_chat(self) -> Any:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name or ""}}
        return "required" if self.type == "any" else self.type


Tools = Long[
    Annotated[Tool, BeforeValidator(one_of(("custom",), "invalid_tools", default="custom"))]
]


class CountRequest(BaseModel):
    """All that makes a prompt. A null is an absent field."""

    model_config = STRICT
    messages: Long[Message] = Field(min_length=1)
    system: Texts | None = None
    metadata: Metadata = Metadata()
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    tools: Tools = []
    tool_choice: ToolChoice = ToolChoice(type="auto")


class MessagesRequest(CountRequest):
    """What asks for an answer, too."""

    max_tokens: Int = Field(ge=1)


_SAME = {"model", "stream", "temperature", "top_p", *EXTENSIONS}
_KNOWN = MessagesRequest.model_fields.keys() | _SAME | {"stop_sequences"}
# Known fields that are accepted and change nothing.
_NO_EFFECT = {"cache_control", "diagnostics", "inference_geo", "service_tier", "speed"}
# Known fields that are not supported, each with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "container": (),
    "context_management": ({}, {"edits": []}),
    "mcp_servers": ([],),
    "output_format": (),
}
_HINTS = {"output_format": "use output_config.format"}
_PATHS = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "stop": "stop_sequences",
    "user_id": "metadata.user_id",
}


def translate(
    body: Mapping[str, Any], kind: type[CountRequest], *, thinks: bool = True
) -> Translation:
    """The chat request that is meant; BadRequest names what is wrong.

    `thinks`: whether the model reasons if the request does not say.
    """
    given = given_fields(body)
    refuse_unsupported(given, _UNSUPPORTED, _HINTS)
    try:
        request = kind.model_validate(given)
    except ValidationError as error:
        raise explain(error) from None
    _check_first(request.messages)
    conversation = Conversation()
    if request.system is not None:
        conversation.system(request.system, "system")
    conversation.turns(request.messages)
    chat = {name: given[name] for name in _SAME if name in given}
    if "stop_sequences" in given:
        chat["stop"] = given["stop_sequences"]
    chat |= _fields(request, thinks) | {"messages": conversation.messages}
    paths = conversation.paths | _PATHS
    for index in range(len(request.tools)):
        paths[f"tools[{index}].function"] = f"tools[{index}]"
        paths[f"tools[{index}].function.parameters"] = f"tools[{index}].input_schema"
    unknown = [name for name in given if name not in _KNOWN | _NO_EFFECT | _UNSUPPORTED.keys()]
    harmless = tuple(sorted(_NO_EFFECT & given.keys()))
    return Translation(chat, Names(paths), tuple(unknown), harmless)


def _fields(request: CountRequest, thinks: bool) -> dict[str, Any]:
    choice, output = request.tool_choice, request.output_config
    chat: dict[str, Any] = {
        "thinking": {"type": request.thinking.type if request.thinking else None},
        "reasoning_effort": output.effort,
        "user_id": request.metadata.user_id,
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
        "tool_choice": choice.as_chat(),
        "tools": [tool.as_chat() for tool in request.tools],
    }
    if request.thinking is None:
        chat["thinking"] = None if thinks else {"type": "disabled"}
    if output.format is not None:
        schema = {"schema": output.format.schema_}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    if isinstance(request, MessagesRequest):
        chat["max_tokens"] = min(request.max_tokens, MAX_OUTPUT)
    return chat


def _check_first(messages: list[Message]) -> None:
    """The user begins, but for instructions."""
    for index, message in enumerate(messages):
        if isinstance(message, SystemMessage):
            continue
        if not isinstance(message, UserMessage):
            path = f"messages[{index}]"
            raise BadRequest(
                f"{path}: expected role user first", code="invalid_messages", param=path
            )
        return
