"""Tools of a request, and which of them the answer may or must call."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, PlainValidator
from pydantic_core import PydanticCustomError

from diptych.core.constraint import Constraint
from diptych.core.errors import BadRequest
from diptych.gateway.fields import Long
from diptych.gateway.generation import STRICT
from diptych.text import constraints
from diptych.text.constraints import from_tools
from diptych.text.tools import Tool

MAX_TOOLS = 512
MAX_TOOLS_BYTES = 2**20
NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,128}$"

_CHOICES = (
    "expected none, auto, required, or an object that names a function or allowed_tools, like "
    '{"type": "function", "function": {"name": "..."}}'
)


def _object_schema(value: dict[str, Any] | None) -> dict[str, Any]:
    """Not looked into but for its type; a tool without a schema has no parameters."""
    kind = (value or {}).get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise PydanticCustomError("invalid_tools", "expected a schema of type object")
    return value or {}


class FunctionDefinition(BaseModel):
    """A function. `strict`: its arguments keep to the schema, whatever the model wants."""

    model_config = STRICT
    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, AfterValidator(_object_schema)] = None
    strict: bool | None = None


class ToolDefinition(BaseModel):
    """There is no other type of tool."""

    model_config = STRICT
    type: Literal["function"]
    function: FunctionDefinition


class Mode(Enum):
    """How much the model is free to call."""

    NONE = auto()
    AUTO = auto()
    REQUIRED = auto()


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`tool_choice`, in whatever form it came."""

    mode: Mode
    only: str | None = None  # this tool, in one call
    allowed: frozenset[str] | None = None  # no tool but these


def _choice(value: Any) -> ToolChoice:
    match value:
        case "none":
            return ToolChoice(Mode.NONE)
        case "auto":
            return ToolChoice(Mode.AUTO)
        case "required":
            return ToolChoice(Mode.REQUIRED)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice(Mode.REQUIRED, only=name)
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools},
        }:
            return ToolChoice(Mode[mode.upper()], allowed=frozenset(_names(tools)))
    raise PydanticCustomError("invalid_tools", _CHOICES)


def _names(tools: list[Any]) -> Iterator[str]:
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                yield name
            case _:
                raise PydanticCustomError("invalid_tools", _CHOICES)


Tools = Annotated[Long[ToolDefinition], Field(max_length=MAX_TOOLS)]
Named = Literal["none", "auto", "required"]
Choice = Annotated[
    ToolChoice, PlainValidator(_choice, json_schema_input_type=Named | dict[str, Any])
]


@dataclass(frozen=True, slots=True)
class Calling:
    """What the model may call, after all defaults."""

    definitions: tuple[ToolDefinition, ...]
    choice: ToolChoice
    is_parallel: bool

    @property
    def is_forced(self) -> bool:
        """There is a call, and no text of the answer."""
        return self.choice.mode is Mode.REQUIRED

    @property
    def shown(self) -> tuple[Tool, ...]:
        """Tools that the prompt states and whose calls a client sees."""
        if self.choice.mode is Mode.NONE:
            return ()
        functions = [definition.function for definition in self.definitions]
        return tuple(
            Tool(function.name, function.description or "", function.parameters or {})
            for function in functions
            if self.choice.allowed is None or function.name in self.choice.allowed
        )

    def constrained(self, answer: Constraint | None, *, is_opened: bool) -> Constraint | None:
        """The constraint of calls and, unless they are forced, of an `answer` in their place."""
        if self.choice.mode is Mode.NONE or not self.definitions:
            return answer
        return from_tools(
            [
                constraints.Tool(f.name, f.parameters, is_strict=bool(f.strict))
                for f in (definition.function for definition in self.definitions)
            ],
            forced=self.is_forced,
            only=self.choice.only,
            allowed=self.choice.allowed,
            parallel=self.is_parallel,
            opened=is_opened,
            answer=answer,
        )

    def check(self) -> None:
        """BadRequest if the parts do not fit together."""
        names = [definition.function.name for definition in self.definitions]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise _wrong("an earlier tool has this name", f"tools[{index}].function.name")
        sizes = (len(d.model_dump_json().encode()) for d in self.definitions)
        if sum(sizes) > MAX_TOOLS_BYTES:
            raise _wrong(f"expected at most {MAX_TOOLS_BYTES} bytes of tools", "tools")
        choice = self.choice
        if not names and (choice.mode is Mode.REQUIRED or choice.allowed is not None):
            raise _wrong("there are no tools to choose from", "tool_choice")
        chosen = {choice.only} if choice.only is not None else choice.allowed or set()
        if not chosen <= set(names):
            raise _wrong("there is no tool with this name in tools", "tool_choice")


def _wrong(text: str, param: str) -> BadRequest:
    return BadRequest(f"{param}: {text}", code="invalid_tools", param=param)
