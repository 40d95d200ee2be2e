"""One answer while it grows, and what it was like. Knows no sockets and no terminal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Answer:
    """Takes the chunks of a stream. Times are seconds of a monotonic clock."""

    began_s: float
    reasoning: str = ""
    content: str = ""
    finish: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    is_stopped: bool = False
    _first_s: float | None = None
    _last_s: float = 0.0

    def take(self, chunk: Mapping[str, Any], now_s: float) -> tuple[str, str]:
        """What it adds: to the reasoning, to the content."""
        self.usage = chunk.get("usage") or self.usage
        self.timings = chunk.get("timings") or self.usage.get("timings") or self.timings
        reasoning = content = ""
        for choice in chunk.get("choices", ()):
            delta = choice["delta"]
            reasoning += delta.get("reasoning_content") or ""
            content += delta.get("content") or ""
            self.finish = choice["finish_reason"] or self.finish
        if reasoning or content:
            self._first_s = now_s if self._first_s is None else self._first_s
            self._last_s = now_s
        self.reasoning += reasoning
        self.content += content
        return reasoning, content

    def message(self) -> dict[str, str] | None:
        """Its place in the next request; None if it says nothing."""
        if not self.content:
            return None
        message = {"role": "assistant", "content": self.content}
        return message | ({"reasoning_content": self.reasoning} if self.reasoning else {})

    def plain(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "content": self.content,
            "reasoning_content": self.reasoning,
            "finish_reason": self.finish,
            "usage": self.usage or None,
            "timings": self.timings or None,
        }

    def facts(self) -> list[str]:
        """What is said under it: tokens, times, and how it ended."""
        facts = [*self._counts(), *self._times()]
        if self.is_stopped:
            facts.append("stopped")
        if self.finish == "length":
            facts.append("cut at the token limit")
        return facts

    def _counts(self) -> list[str]:
        if not self.usage:
            return []
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        thought = (self.usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
        prompt = f"prompt {self.usage['prompt_tokens']}" + (f" ({cached} cached)" if cached else "")
        count = self.usage["completion_tokens"]
        tokens = f"{count} token{'' if count == 1 else 's'}"
        return [prompt, tokens + (f" ({thought} reasoning)" if thought else "")]

    def _times(self) -> list[str]:
        times = []
        if self._first_s is not None:
            times.append(f"first token {_duration((self._first_s - self.began_s) * 1000)}")
            spent_s = self._last_s - self._first_s
            count = self.usage.get("completion_tokens", 0) - 1  # the first is the prompt's work
            if count > 0 and spent_s > 0:
                times.append(f"{count / spent_s:.3g} tokens/s")
        told = [_timing(*item) for item in self.timings.items() if _is_number(item[1])]
        return [*times, f"server: {', '.join(told)}"] if told else times


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _timing(name: str, value: float) -> str:
    """One of the server's; its unit is the end of its name."""
    for ending, factor in (("_ms", 1), ("_s", 1000)):
        if name.endswith(ending):
            return f"{name.removesuffix(ending).replace('_', ' ')} {_duration(value * factor)}"
    return f"{name.replace('_', ' ')} {value:g}"


def _duration(ms: float) -> str:
    if ms >= 1000:
        return f"{ms / 1000:.2f} s"
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
