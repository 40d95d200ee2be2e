"""What an answer is said to have cost, in every dialect."""

from typing import Any

import pytest

from diptych.text.markers import Marker

END, EOS = Marker.END_THINK, Marker.EOS
MESSAGES = [{"role": "user", "content": "Hello"}]
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": MESSAGES},
}


@pytest.mark.parametrize("cached", [0, 3, 10_000])
@pytest.mark.parametrize("path", PATHS)
async def test_t89_parts_add_up_and_no_more_is_cached_than_there_is(
    serve: Any, path: str, cached: int
) -> None:
    """Even if an engine counts what it found for a longer prompt."""
    site = serve("Hm.", END, "Yes", EOS, cached_tokens=cached)
    limit = {} if path == "/v1/responses" else {"max_tokens": 50}
    reply = await site.http.post(path, json={"model": "tiny", **PATHS[path], **limit})
    usage = reply.json()["usage"]
    prompt = len(site.hops.generations[0].prompt)
    sampled = len(site.hops.output.token_ids)
    hits = min(cached, prompt)
    match path:
        case "/v1/messages":
            assert usage["input_tokens"] == prompt - hits
            assert usage["cache_read_input_tokens"] == hits
            assert (usage["cache_creation_input_tokens"], usage["output_tokens"]) == (0, sampled)
        case "/v1/responses":
            assert usage["input_tokens"] == prompt
            assert usage["input_tokens_details"]["cached_tokens"] == hits
            assert usage["output_tokens"] == sampled
            assert usage["total_tokens"] == prompt + sampled
        case _:
            assert usage["prompt_tokens"] == prompt
            assert usage["prompt_tokens_details"]["cached_tokens"] == hits
            assert usage["prompt_cache_hit_tokens"] == hits
            assert usage["prompt_cache_miss_tokens"] == prompt - hits
            assert usage["completion_tokens"] == sampled
            assert usage["total_tokens"] == prompt + sampled
