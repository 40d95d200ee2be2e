"""A record of decisions: everything that went in and what came out, so that each can be replayed.

JSON lines of lengths, loads, coefficients and draws; no text and no names of users. The file is
bounded: a full one becomes FILE.1, which takes the place of an older one. `replay` decides again
from what was recorded and compares bit for bit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from diptych.core.errors import Misconfigured
from diptych.core.ids import Incarnation, Rank, WorkerId
from diptych.core.phases import Role
from diptych.router.costs import Costs
from diptych.router.ledger import Pending
from diptych.router.policy import Ask, Candidate, Choice, Wait, Why, choose_decode, choose_prefill

MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Decision:
    """One call of the policy. A decode decision names the namespace of the prompt."""

    request_id: str
    attempt: int
    ask: Ask
    candidates: tuple[Candidate, ...]
    pending: dict[bytes, Pending]
    namespace: bytes | None
    outcome: Choice | Wait


@dataclass(frozen=True, slots=True)
class Difference:
    """A line whose decision came out otherwise."""

    line: int
    recorded: dict[str, Any]
    decided: dict[str, Any]


class Recorder:
    """Appends decisions to a file of bounded size."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = self._open()
        self._size = self._file.tell()

    def record(self, decision: Decision) -> None:
        line = orjson.dumps(_to_json(decision)) + b"\n"
        if self._size and self._size + len(line) > self._max_bytes:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._open()
            self._size = 0
        self._file.write(line)
        self._size += len(line)

    def close(self) -> None:
        self._file.close()

    def _open(self) -> BinaryIO:
        try:
            return self._path.open("ab")
        except OSError as error:
            raise Misconfigured(f"{self._path}: {error.strerror or error}") from error


def replay(lines: Iterable[bytes]) -> Iterator[Difference | None]:
    """For each line None, or how the decision differs; Misconfigured if it is not a decision."""
    for number, line in enumerate(lines, 1):
        try:
            decision = _from_json(orjson.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise Misconfigured(f"line {number} is not a recorded decision") from error
        recorded = _outcome_to_json(decision.outcome)
        decided = _outcome_to_json(decide(decision))
        yield None if recorded == decided else Difference(number, recorded, decided)


def decide(decision: Decision) -> Choice | Wait:
    """What the policy says to recorded inputs."""
    if decision.namespace is not None:
        return choose_decode(decision.candidates, decision.namespace, decision.ask)
    pending = decision.pending
    return choose_prefill(
        decision.candidates, decision.ask, lambda name: pending.get(name, Pending())
    )


def _to_json(decision: Decision) -> dict[str, Any]:
    return {
        "request": decision.request_id,
        "attempt": decision.attempt,
        "ask": asdict(decision.ask) | {"gap_target_ms": _finite(decision.ask.gap_target_ms)},
        "candidates": [asdict(c) | {"namespace": c.namespace.hex()} for c in decision.candidates],
        "pending": {name.hex(): asdict(p) for name, p in decision.pending.items()},
        "namespace": None if decision.namespace is None else decision.namespace.hex(),
        "outcome": _outcome_to_json(decision.outcome),
    }


def _from_json(line: dict[str, Any]) -> Decision:
    ask = dict(line["ask"])
    if ask["gap_target_ms"] is None:
        ask["gap_target_ms"] = float("inf")
    namespace = line["namespace"]
    return Decision(
        line["request"],
        line["attempt"],
        Ask(**ask),
        tuple(_candidate(c) for c in line["candidates"]),
        {bytes.fromhex(name): Pending(**p) for name, p in line["pending"].items()},
        None if namespace is None else bytes.fromhex(namespace),
        _outcome_from_json(line["outcome"]),
    )


def _candidate(fields: dict[str, Any]) -> Candidate:
    return Candidate(
        **fields
        | {
            "rank": _rank(fields["rank"]),
            "role": Role(fields["role"]),
            "namespace": bytes.fromhex(fields["namespace"]),
            "costs": Costs(**fields["costs"]),
            "bad_partners": tuple(fields.get("bad_partners", ())),
        }
    )


def _rank(fields: dict[str, Any]) -> Rank:
    return Rank(
        WorkerId(fields["worker_id"]),
        fields["address"],
        Incarnation(fields["incarnation"]),
        fields["dp_rank"],
    )


def _outcome_to_json(outcome: Choice | Wait) -> dict[str, Any]:
    fields: dict[str, Any] = orjson.loads(orjson.dumps(asdict(outcome)))
    return fields


def _outcome_from_json(fields: dict[str, Any]) -> Choice | Wait:
    if "why" in fields:
        return Wait(**fields | {"why": Why(fields["why"])})
    return Choice(
        **fields
        | {
            "rank": _rank(fields["rank"]),
            "role": Role(fields["role"]),
            "reasons": tuple(fields["reasons"]),
        }
    )


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return None if value == float("inf") else value
