"""The body of a Responses request: its fields, and the chat request that they mean."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from diptych.core.errors import BadRequest
from diptych.gateway.fields import Int, Long, explain, given_fields, refuse_unsupported
from diptych.gateway.generation import MAX_USER_BYTES, STRICT
from diptych.gateway.responses.conversation import Conversation
from diptych.gateway.responses.items import Input
from diptych.gateway.responses.tools import Choice, Tool, Toolbox
from diptych.gateway.translation import EXTENSIONS, Names, Translation

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
MAX_METADATA = 16
MAX_NAME_CHARS = 64
MAX_METADATA_CHARS = 512
MAX_ECHO_CHARS = 1 << 20


def _metadata(value: Any) -> Any:
    """Keys are not repeated in what is said about them."""
    is_small = isinstance(value, dict) and len(value) <= MAX_METADATA
    if not is_small or not all(
        isinstance(text, str) and len(name) <= MAX_NAME_CHARS and len(text) <= MAX_METADATA_CHARS
        for name, text in value.items()
    ):
        text = f"expected at most {MAX_METADATA} strings of at most {MAX_METADATA_CHARS} characters"
        raise PydanticCustomError("invalid_value", "{text}", {"text": text})
    return value


class Reasoning(BaseModel):
    """How hard to think; chat requests know the efforts. Summaries are not made."""

    model_config = STRICT
    effort: Any = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class TextOptions(BaseModel):
    """What the text shall be; chat requests know the formats, nearly."""

    model_config = STRICT
    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ResponsesRequest(BaseModel):
    """A null is an absent field."""

    model_config = STRICT
    input: Input | None = None
    instructions: str | None = None
    tools: Long[Tool] = []
    tool_choice: Choice = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning = Reasoning()
    text: TextOptions = TextOptions()
    include: Long[Include] = []
    top_logprobs: Int = 0  # chat requests know the bounds
    metadata: Annotated[dict[str, str], BeforeValidator(_metadata)] = Field({})
    user: str | None = Field(None, max_length=MAX_USER_BYTES)
    store: bool | None = None


_SAME = {"model", "stream", "temperature", "top_p", "user", "user_id", *EXTENSIONS}
_KNOWN = ResponsesRequest.model_fields.keys() | _SAME | {"max_output_tokens"}
# Known fields that are accepted and change nothing.
_NO_EFFECT = {
    "max_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "stream_options",
}  # fmt: skip
# Known fields that are not supported, each with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "truncation": ("disabled",),
}
_STATELESS = "nothing is stored here; send the whole conversation as input"
_HINTS = {
    "conversation": _STATELESS,
    "previous_response_id": _STATELESS,
    "truncation": "a context that is too long is refused",
}
_PATHS = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read. `echo`: fields that the response repeats."""

    translation: Translation
    echo: Mapping[str, Any]
    namespaces: Mapping[str, tuple[str, str]]
    has_encrypted: bool = False


def translate(body: Mapping[str, Any]) -> Asked:
    """The chat request that is meant; BadRequest names what is wrong."""
    given = given_fields(body)
    refuse_unsupported(given, _UNSUPPORTED, _HINTS)
    try:
        request = ResponsesRequest.model_validate(given)
    except ValidationError as error:
        raise explain(error) from None
    conversation, toolbox = _conversation(request), Toolbox(request.tools)
    chat = {name: given[name] for name in _SAME if name in given}
    chat |= _fields(request, toolbox) | {"messages": conversation.messages}
    chat["max_tokens"] = given.get("max_output_tokens")
    ignored = [n for n in given if n not in _KNOWN | _NO_EFFECT | _UNSUPPORTED.keys()]
    ignored += [f"tools[{index}]" for index in toolbox.dropped]
    if request.tool_choice is None:
        ignored.append("tool_choice")
    names = Names(_PATHS | conversation.paths | toolbox.paths)
    return Asked(
        Translation(chat, names, tuple(ignored), tuple(sorted(_NO_EFFECT & given.keys()))),
        _echo(given, request, toolbox),
        toolbox.namespaces,
        has_encrypted=ENCRYPTED in request.include,
    )


def _conversation(request: ResponsesRequest) -> Conversation:
    conversation = Conversation()
    if request.instructions:
        conversation.say("system", request.instructions, "instructions")
    if isinstance(request.input, str):
        conversation.say("user", request.input, "input")
    elif request.input is not None:
        if not request.input:
            text = "input: expected at least one item"
            raise BadRequest(text, code="invalid_messages", param="input")
        conversation.follow(request.input)
    elif not request.instructions:
        text = "input: required, unless there are instructions"
        raise BadRequest(text, code="missing_required_parameter", param="input")
    return conversation


def _fields(request: ResponsesRequest, toolbox: Toolbox) -> dict[str, Any]:
    chat: dict[str, Any] = {
        "reasoning_effort": request.reasoning.effort,
        "parallel_tool_calls": request.parallel_tool_calls,
        "tool_choice": request.tool_choice or "auto",
        "tools": toolbox.definitions,
        "response_format": _format(request.text.format),
    }
    if request.reasoning.effort not in (None, "none"):
        chat["thinking"] = {"type": "enabled"}  # there is no other switch
    if request.top_logprobs or LOGPROBS in request.include:
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    return chat


def _format(asked: dict[str, Any] | None) -> dict[str, Any] | None:
    """Chats have one more level around a schema."""
    if asked is None or asked.get("type") != "json_schema":
        return asked
    inner = {name: value for name, value in asked.items() if name != "type"}
    return {"type": "json_schema", "json_schema": inner}


def _echo(given: Mapping[str, Any], request: ResponsesRequest, toolbox: Toolbox) -> dict[str, Any]:
    instructions = request.instructions
    if instructions is not None and len(instructions) > MAX_ECHO_CHARS:
        instructions = None  # a stream would send it three times
    reasoning, tools = given.get("reasoning", {}), given.get("tools", [])
    return {
        "background": False,
        "instructions": instructions,
        "max_output_tokens": given.get("max_output_tokens"),
        "metadata": request.metadata,
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": False,
        "text": {"format": {"type": "text"}} | request.text.model_dump(exclude_none=True),
        "tool_choice": given.get("tool_choice", "auto") if request.tool_choice else "auto",
        "tools": [tool for i, tool in enumerate(tools) if i not in toolbox.dropped],
        "top_logprobs": request.top_logprobs,
        "truncation": "disabled",
        "user": request.user,
    }
