"""Requests of public traces at the size of the tiny model, and what an infinite cache would hit.

Mooncake's traces name blocks of 512 tokens by number: here a number becomes 32 tokens, always the
same. Agent runs become chats, one request before each thing that the agent said.
"""

import json
import lzma
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
GRAIN = 32  # of a trace's blocks, and of the workers that replay it
SHRINK = 16  # tokens of a trace for one of ours
MOST_TOKENS = 126 * GRAIN  # what fits the tiny model's context
WORDS = (300, 900)  # ids that stand for plain text in its vocabulary
AGENT_SYSTEM_CHARS, AGENT_CHARS = 1200, 200  # kept of a message: as much smaller as the model


@dataclass(frozen=True)
class Request:
    """Tokens, or a chat that the gateway makes into tokens."""

    tokens: tuple[int, ...] = ()
    messages: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival."""

    name: str
    requests: tuple[Request, ...]

    def first(self, count: int | None) -> "Trace":
        return self if count is None else replace(self, requests=self.requests[:count])


def block(number: int) -> tuple[int, ...]:
    """The tokens that a number of a trace stands for."""
    draw = random.Random(number)
    return tuple(draw.randrange(*WORDS) for _ in range(GRAIN))


def mooncake(name: str, path: Path) -> Trace:
    return Trace(name, tuple(_mooncake(row) for row in rows(path)))


def _mooncake(row: dict[str, Any]) -> Request:
    numbers = row["hash_ids"][: MOST_TOKENS // GRAIN]
    tokens = [token for number in numbers for token in block(number)]
    length = min(len(tokens), max(1, row["input_length"] // SHRINK))
    return Request(tokens=tuple(tokens[:length]))


def agents(name: str, path: Path) -> Trace:
    """Runs side by side, as agents of one system do: each one's next call follows the others'."""
    calls = [list(_calls(row["messages"])) for row in rows(path)]
    longest = max(map(len, calls))
    turns = [run[turn] for turn in range(longest) for run in calls if turn < len(run)]
    return Trace(name, tuple(turns))


def _calls(messages: Sequence[dict[str, Any]]) -> Iterator[Request]:
    said: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role == "assistant" and said:
            yield Request(messages=tuple(said))
        most = AGENT_SYSTEM_CHARS if role == "system" else AGENT_CHARS
        asked = "".join(json.dumps(call["function"]) for call in message.get("tool_calls") or ())
        text = ((message.get("content") or "") + asked)[:most]
        said = [*said, {"role": "user" if role == "tool" else role, "content": text or "-"}]


def rows(path: Path) -> Iterator[dict[str, Any]]:
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


class InfiniteCache:
    """Keeps every block for ever, and needs no anchors."""

    def __init__(self, keep: int) -> None:
        self._keep = keep  # tokens at a prompt's end that are always computed
        self._seen: set[int] = set()

    def hit(self, tokens: Sequence[int]) -> int:
        """Tokens of a prompt that were seen at the beginning of another; it is seen from now on."""
        usable = max(0, len(tokens) - self._keep) // GRAIN
        found, name, is_known = 0, 0, True
        for index in range(len(tokens) // GRAIN):
            name = hash((name, tuple(tokens[index * GRAIN : (index + 1) * GRAIN])))
            is_known = is_known and name in self._seen
            found += is_known and index < usable
            self._seen.add(name)
        return found * GRAIN
