"""Tools of a Responses request: functions, also in namespaces. A namespace's are `ns::name`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from diptych.gateway.chat.tools import FunctionDefinition, ToolDefinition
from diptych.gateway.fields import Long
from diptych.gateway.generation import STRICT
from diptych.gateway.variants import one_of

NAME = r"^[a-zA-Z0-9_-]{1,64}$"
WEB_SEARCH = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)

_CHOICES = (
    "expected none, auto, required, or an object that names a function or allowed_tools, like "
    '{"type": "function", "name": "..."}'
)


class FunctionTool(BaseModel):
    """A function of the client's."""

    model_config = STRICT
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class MemberFunction(FunctionTool):
    """One in a namespace."""

    name: str = Field(pattern=NAME)


class NamespaceTool(BaseModel):
    """Functions that belong together."""

    model_config = STRICT
    type: Literal["namespace"]
    name: str = Field(pattern=NAME)
    description: str | None = None
    tools: Long[
        Annotated[MemberFunction, BeforeValidator(one_of(("function",), "invalid_tools"))]
    ] = Field(min_length=1)


class WebSearchTool(BaseModel):
    """A tool of a server's that a client can do without."""

    model_config = STRICT
    type: str


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "@web_search" if kind in WEB_SEARCH else f"@{kind}"


Tool = Annotated[
    Annotated[FunctionTool, Tag("@function")]
    | Annotated[NamespaceTool, Tag("@namespace")]
    | Annotated[WebSearchTool, Tag("@web_search")],
    Discriminator(_tag),
    BeforeValidator(one_of(("function", "namespace", *WEB_SEARCH), "invalid_tools")),
]


class _Qualified(FunctionDefinition):
    """A function under the name that the model reads."""

    name: str


def joined(namespace: str | None, name: str) -> str:
    """The name that the model reads."""
    return f"{namespace}::{name}" if namespace else name


class Toolbox:
    """Tools as a chat knows them."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.definitions: list[dict[str, Any] | ToolDefinition] = []
        self.paths: dict[str, str] = {}
        self.namespaces: dict[str, tuple[str, str]] = {}
        """Namespace and name of each function that is in one."""
        self.dropped: list[int] = []
        for index, tool in enumerate(tools):
            self._add(tool, index)

    def _add(self, tool: Tool, index: int) -> None:
        path = f"tools[{index}]"
        match tool:
            case FunctionTool():
                function = tool.model_dump(exclude={"type"})
                self._define({"type": "function", "function": function}, path)
            case NamespaceTool():
                for place, member in enumerate(tool.tools):
                    self._define(self._qualified(tool, member), f"{path}.tools[{place}]")
            case _:
                self.dropped.append(index)

    def _qualified(self, namespace: NamespaceTool, member: MemberFunction) -> ToolDefinition:
        name = joined(namespace.name, member.name)
        self.namespaces[name] = (namespace.name, member.name)
        said = [text for text in (namespace.description, member.description) if text]
        fields = member.model_dump(exclude={"type", "name", "description"})
        function = _Qualified(name=name, description="\n".join(said), **fields)
        return ToolDefinition(type="function", function=function)

    def _define(self, definition: dict[str, Any] | ToolDefinition, path: str) -> None:
        self.paths[f"tools[{len(self.definitions)}].function"] = path
        self.paths[f"tools[{len(self.definitions)}]"] = path
        self.definitions.append(definition)


def _choice(value: Any) -> Any:
    """What a chat calls it; None where a server's search was to be chosen."""
    match value:
        case "none" | "auto" | "required":
            return value
        case {"type": "function", "name": str()}:
            return _named(value)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [_, *_]}:
            named = [_named(tool) for tool in value["tools"]]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
        case {"type": str(kind)} if kind in WEB_SEARCH:
            return None
    raise PydanticCustomError("invalid_tools", _CHOICES)


def _named(value: Any) -> dict[str, Any]:
    match value:
        case {"type": "function", "name": str(name), "namespace": str(namespace)}:
            return {"type": "function", "function": {"name": joined(namespace, name)}}
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
    raise PydanticCustomError("invalid_tools", _CHOICES)


Choice = Annotated[Any, PlainValidator(_choice)]
