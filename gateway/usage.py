"""Usage as OpenAI-style answers tell it."""

from typing import Any


def usage(prompt: int, cached: int, completion: int, reasoning: int = 0) -> dict[str, Any]:
    """Tokens of each kind; `cached` of the prompt's, `reasoning` of the completion's."""
    hits = min(cached, prompt)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": hits},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        "prompt_cache_hit_tokens": hits,
        "prompt_cache_miss_tokens": prompt - hits,
    }
