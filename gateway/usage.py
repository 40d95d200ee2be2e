"""Usage as OpenAI-style answers tell it."""

from typing import Any


def usage(
    prompt: int,
    cached: int,
    completion: int,
    reasoning: int = 0,
    *,
    memory: int = 0,
    disk: int = 0,
) -> dict[str, Any]:
    """Tokens of each kind; `cached` of the prompt's, `reasoning` of the completion's.

    `memory` and `disk`: of the cached ones, those that the cache tier brought; the others were in a
    worker's own pages.
    """
    hits = min(cached, prompt)
    tiers = {"device": hits - memory - disk, "memory": memory, "disk": disk}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": hits,
            **({"cached_tokens_by_tier": tiers} if memory or disk else {}),
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        "prompt_cache_hit_tokens": hits,
        "prompt_cache_miss_tokens": prompt - hits,
    }
