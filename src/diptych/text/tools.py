"""Tools, their calls and the answer's format, as the prompt states them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from diptych.text import pyjson
from diptych.text.markers import Marker, Segment, split


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON Schema."""

    name: str
    description: str = ""
    parameters: object = field(default_factory=dict)

    @property
    def properties(self) -> frozenset[str]:
        """Names of the parameters that the schema states."""
        stated = self.parameters.get("properties") if isinstance(self.parameters, dict) else None
        return frozenset(stated) if isinstance(stated, dict) else frozenset()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made before. `arguments` is what it wrote: hopefully JSON."""

    id: str
    name: str
    arguments: str


OPEN_CALLS: tuple[Segment, ...] = ("\n\n<", Marker.DSML, " calls>\n")

_MARKS = (Marker.DSML, Marker.THINK, Marker.END_THINK)

_BEFORE = split(
    """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning \
inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

""",
    _MARKS,
)
_AFTER = (
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke "
    "tool calls.\n"
)


def definitions(tools: Sequence[Tool]) -> list[Segment]:
    """The part of the system text about tools; nothing without tools."""
    if not tools:
        return []
    return ["\n\n", *_BEFORE, "\n".join(map(_definition, tools)), _AFTER]


def response_format(schema: object) -> str:
    """The part of the system text about the answer's format."""
    return (
        "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
        + pyjson.dumps(schema)
    )


def invocations(calls: Iterable[ToolCall]) -> list[Segment]:
    """Calls as the model writes them, after its text; nothing without calls."""
    segments = [segment for call in calls for segment in _invocation(call)]
    if not segments:
        return []
    return [*OPEN_CALLS, *segments, "</", Marker.DSML, " calls>"]


def _definition(tool: Tool) -> str:
    shown = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.parameters is None:
        shown["parameters"] = {}
    return pyjson.dumps(shown)


def _invocation(call: ToolCall) -> Iterator[Segment]:
    yield from ("<", Marker.DSML, f' invoke name="{call.name}">\n')
    for index, (name, value) in enumerate(_arguments(call.arguments).items()):
        is_string = isinstance(value, str)
        text = value if isinstance(value, str) else pyjson.dumps(value)
        if index:
            yield "\n"
        yield from ("<", Marker.DSML, f' parameter name="{name}" ')
        yield from (f'string="{"true" if is_string else "false"}">{text}</', Marker.DSML)
        yield " parameter>"
    yield from ("\n</", Marker.DSML, " invoke>\n")


def _arguments(text: str) -> dict[str, object]:
    """Text that is no object becomes the one argument `arguments`."""
    try:
        value = pyjson.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}
