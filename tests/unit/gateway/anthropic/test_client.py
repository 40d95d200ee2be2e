"""Anthropic's own client over scripted engines: what it puts together from every size of a step."""

import json
from typing import Any

import anthropic
import httpx2
import pytest

from diptych.core.errors import Lost, Overloaded
from diptych.text.markers import Marker, Segment
from diptych.text.tools import ToolCall, invocations

END, EOS = Marker.END_THINK, Marker.EOS
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Any = [{"name": "weather", "input_schema": SCHEMA}]
PARIS = ToolCall("", "weather", '{"city": "Par\\nis 漢字 😀"}')
ALL: list[Segment] = ["Need it.", END, "Look:", *invocations([PARIS]), EOS]
WISH: Any = {
    "model": "tiny",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "Hello"}],
    "tools": TOOLS,
}


def official(asked: Any) -> anthropic.AsyncAnthropic:
    transport = httpx2.ASGITransport(asked.site.app, raise_app_exceptions=False)
    http = httpx2.AsyncClient(transport=transport, base_url="http://gateway")
    return anthropic.AsyncAnthropic(
        base_url="http://gateway", api_key="any", max_retries=0, http_client=http
    )


@pytest.mark.parametrize("tokens_a_step", [1, 2, 3, 7, 200])
async def test_t106_it_puts_a_stream_together_to_the_whole_message(
    client: Any, tokens_a_step: int
) -> None:
    async with official(client(*ALL, tokens_a_step=tokens_a_step, cached_tokens=4)) as claude:
        whole = await claude.messages.create(**WISH)
        async with claude.messages.stream(**WISH) as stream:
            final = await stream.get_final_message()
    kept = {"type", "thinking", "text", "name", "input"}
    shown = [block.model_dump(include=kept) for block in whole.content]
    assert [block.model_dump(include=kept) for block in final.content] == shown
    assert [block["type"] for block in shown] == ["thinking", "text", "tool_use"]
    assert shown[2]["input"] == json.loads(PARIS.arguments)
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
    assert final.usage.cache_read_input_tokens == 4


async def test_t19_it_raises_what_goes_wrong_in_the_middle(client: Any) -> None:
    asked = client("one two three four", EOS)
    for stage in ("token 3", "token 4", "token 5"):
        asked.site.hops.failures[stage] = [Lost("gone")]
    async with official(asked) as claude:
        wish = WISH | {"thinking": {"type": "disabled"}}
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with claude.messages.stream(**wish) as stream:
                await stream.get_final_message()
    assert "gone" in str(caught.value.message)


@pytest.mark.parametrize("stream", [False, True])
async def test_t92_it_knows_what_went_wrong_before(client: Any, stream: bool) -> None:
    asked = client("x", EOS)
    asked.site.hops.failures["place"] = [Overloaded("full", retry_after_s=2)]
    async with official(asked) as claude:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await claude.messages.create(**WISH, stream=stream)
    assert caught.value.status_code == 503
    assert "full" in str(caught.value.body)
    assert caught.value.request_id is not None
