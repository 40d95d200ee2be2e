"""OpenAI's own client over scripted engines: what it puts together from every size of a step."""

from typing import Any

import httpx2
import openai
import pytest

from diptych.core.errors import Lost
from diptych.text.markers import Marker, Segment
from diptych.text.tools import ToolCall, invocations

END, EOS = Marker.END_THINK, Marker.EOS
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": None}]
PARIS = ToolCall("", "weather", '{"city": "Par\\nis 漢字 😀"}')
ALL: list[Segment] = ["Need it.", END, "Look:", *invocations([PARIS]), EOS]
WISH: Any = {"model": "tiny", "input": "Hello", "tools": TOOLS}


def official(asked: Any) -> openai.AsyncOpenAI:
    transport = httpx2.ASGITransport(asked.site.app, raise_app_exceptions=False)
    http = httpx2.AsyncClient(transport=transport, base_url="http://gateway")
    return openai.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="any", max_retries=0, http_client=http
    )


@pytest.mark.parametrize("tokens_a_step", [1, 2, 3, 7, 200])
async def test_it_puts_a_stream_together_to_the_whole_response(
    client: Any, tokens_a_step: int
) -> None:
    async with official(client(*ALL, tokens_a_step=tokens_a_step, cached_tokens=4)) as opened:
        whole = await opened.responses.create(**WISH)
        async with opened.responses.stream(**WISH) as stream:
            snapshots = [e.snapshot async for e in stream if hasattr(e, "snapshot")]
            final = await stream.get_final_response()
    kept = {"type", "content", "arguments", "name", "status", "phase"}
    drop = {"content": {"__all__": {"parsed"}}}
    shown = [item.model_dump(include=kept, exclude=drop) for item in whole.output]
    assert [item.model_dump(include=kept, exclude=drop) for item in final.output] == shown
    assert [item["type"] for item in shown] == ["reasoning", "message", "function_call"]
    assert snapshots[-1] == shown[2]["arguments"] == PARIS.arguments
    assert (final.status, final.usage) == (whole.status, whole.usage)
    assert whole.output_text == "Look:"


async def test_t20_it_hears_of_what_goes_wrong_in_the_middle(client: Any) -> None:
    asked = client("one two three four", EOS)
    for stage in ("token 3", "token 4", "token 5"):
        asked.site.hops.failures[stage] = [Lost("gone")]
    async with official(asked) as opened:
        wish = {"model": "tiny", "input": "Hello", "reasoning": {"effort": "none"}}
        events = [event async for event in await opened.responses.create(**wish, stream=True)]
    error, failed = events[-2:]
    assert error.type == "error"
    assert error.code == "worker_lost"
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert failed.response.error.code == "worker_lost"
