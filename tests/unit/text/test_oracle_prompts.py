"""Random conversations against the encoder that DeepSeek published, byte for byte and id for id.

Where we go further, there is nothing to compare: effort by number, the role `developer`, forced
calls after reasoning, prefixes with tools, tasks. Numbers beyond 64 bits and -0 may differ.
"""

import json
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diptych.text.chat import Chat, Message, Role, render
from diptych.text.image import Image
from diptych.text.markers import Marker, spell
from diptych.text.tokenizer import Tokenizer
from diptych.text.tools import Tool, ToolCall

EFFORTS = {"low": 50, "high": 75, "max": 100, None: 75}
MARKERS = recipe.SpecialTokens(image=Marker.IMAGE.value)  # theirs is V4's
OPTIONS = recipe.ConversionOptions().with_special_tokens(MARKERS)

SPELLINGS = [marker.value for marker in Marker]
TEXT = st.lists(
    st.sampled_from(
        [*SPELLINGS, "\n", "\n\n", " ", "a", "Wörter", "漢字", "😀", "<", "</", '"', "json", "12"]
    )
    | st.text(max_size=4),
    max_size=5,
).map("".join)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
ARGUMENTS = (
    OBJECTS.map(lambda value: json.dumps(value, ensure_ascii=False))
    | OBJECTS.map(json.dumps)
    | st.sampled_from(["", "[]", "null", "{", '{"a":1} x', '{"a":1e400}', '{"a":"\\ud83d"}'])
    | st.sampled_from(['{"a":1,"b":2,"a":3}', ' {"a" :1} ', '{"a":{"b":1,"b":0.10}}'])
)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAA"
    "ABQABpfZFQAAAAABJRU5ErkJggg=="
)


@st.composite
def contents(draw: st.DrawFn, *, images: bool = True) -> tuple[Any, Any]:
    """The same content for them and for us."""
    if draw(st.booleans()):
        text = draw(TEXT)
        return text, text
    part = TEXT.map(lambda text: ({"type": "text", "text": text}, text))
    if images:
        url = {"type": "image_url", "image_url": {"url": PIXEL}}
        part |= st.just((url, Image(1, 1)))
    parts = draw(st.lists(part, max_size=3))
    return [theirs for theirs, _ in parts], tuple(ours for _, ours in parts)


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[dict[str, Any], Message]]:
    """A few messages that belong together."""
    role = draw(st.sampled_from(["system", "user", "user", "assistant", "calls", "reminder"]))
    if role == "reminder":
        text = draw(TEXT)
        return [({"role": "latest_reminder", "content": text}, Message(Role.REMINDER, text))]
    theirs, ours = draw(contents(images=role in ("system", "user")))
    if role in ("system", "user"):
        return [({"role": role, "content": theirs}, Message(Role(role), ours))]
    reasoning = draw(st.none() | TEXT)
    said: dict[str, Any] = {"role": "assistant", "content": theirs}
    if reasoning is not None:
        said["reasoning_content"] = reasoning
    if role == "assistant":
        return [(said, Message(Role.ASSISTANT, ours, reasoning or ""))]
    written = draw(st.lists(ARGUMENTS, min_size=1, max_size=3))
    calls = [ToolCall(f"c{index}", "f", text) for index, text in enumerate(written)]
    said["tool_calls"] = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in calls
    ]
    out = [(said, Message(Role.ASSISTANT, ours, reasoning or "", tuple(calls)))]
    for call in draw(st.permutations(calls)):
        theirs, ours = draw(contents())
        answer = {"role": "tool", "tool_call_id": call.id, "content": theirs}
        out.append((answer, Message(Role.TOOL, ours, call_id=call.id)))
    return out


@st.composite
def chats(draw: st.DrawFn) -> tuple[dict[str, Any], Chat]:
    """A request as they take it, and as we do."""
    both = [pair for turn in draw(st.lists(turns(), min_size=1, max_size=5)) for pair in turn]
    messages = [ours for _, ours in both]
    body: dict[str, Any] = {"model": "DeepSeek-V4.1-Flash", "messages": [said for said, _ in both]}
    is_thinking, level = draw(st.booleans()), draw(st.sampled_from(list(EFFORTS)))
    body["thinking"] = {"type": "enabled" if is_thinking else "disabled"}
    if level and is_thinking:
        body["reasoning_effort"] = level
    schemas = OBJECTS.map(lambda more: {"type": "object", "more": more})
    tools = draw(st.lists(st.tuples(st.none() | TEXT, st.none() | schemas), max_size=2))
    known = tuple(
        Tool(f"f{index}", description or "", parameters or {})
        for index, (description, parameters) in enumerate(tools)
    )
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": f"f{index}", "description": about, "parameters": schema},
            }
            for index, (about, schema) in enumerate(tools)
        ]
    opens_calls = False
    if tools and not is_thinking and draw(st.booleans()):
        body["tool_choice"] = "required"
        opens_calls = True
    elif not tools and not any(m.calls for m in messages) and draw(st.booleans()):
        text, reasoning = draw(TEXT), draw(TEXT)
        prefix = {"role": "assistant", "content": text, "reasoning_content": reasoning}
        body["messages"].append(prefix | {"prefix": True})
        messages.append(Message(Role.ASSISTANT, text, reasoning, is_prefix=True))
    schema = draw(st.none() | OBJECTS.map(lambda more: {"more": more}))
    if schema is not None and not opens_calls:
        format_ = {"name": "n", "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": format_}
    else:
        schema = None
    effort = EFFORTS[level] if is_thinking else None
    return body, Chat(tuple(messages), effort, known, schema, opens_calls)


@pytest.fixture(scope="module")
def encoding(checkpoint: Path) -> recipe.DeepseekV41Encoding:
    loaded = recipe.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return recipe.DeepseekV41Encoding().with_special_tokens(MARKERS).with_tokenizer(loaded)


@settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))
@given(chats())
def test_prompts_are_theirs(
    encoding: recipe.DeepseekV41Encoding, real: Tokenizer, both: tuple[dict[str, Any], Chat]
) -> None:
    body, chat = both
    request = recipe.ChatCompletionRequest(json.dumps(body))
    conversation = request.convert(OPTIONS).conversation
    segments = render(chat)
    assert spell(segments) == encoding.render_conversation(conversation).prompt
    single = [Marker.IMAGE if isinstance(segment, Image) else segment for segment in segments]
    assert list(real.encode(single)) == encoding.encode(conversation)
