"""A dispatcher with workers that say what a test wants, on a clock of the test's own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diptych.core.ids import Incarnation, Rank
from diptych.core.phases import Role
from diptych.router.decisions import Decision
from diptych.router.dispatcher import Dispatcher
from diptych.router.messages import (
    Again,
    Answer,
    DecodeAt,
    Have,
    Join,
    Load,
    PrefillAt,
    Progress,
    SkipTo,
    Want,
)
from diptych.router.pairs import Pairs
from diptych.router.registry import Record, StreamRegistry


class House:
    """A dispatcher with workers and a clock."""

    def __init__(
        self,
        *workers: str,
        slots: int = 4,
        queue_limit: int = 100,
        on_decision: Callable[[Decision], None] | None = None,
        seed: int = 0,
        must_prove: bool = False,
    ) -> None:
        self.now_s = 100.0
        self.registry = StreamRegistry()
        self.pairs = Pairs(must_prove=must_prove)
        self.dispatcher = Dispatcher(
            self.registry,
            queue_limit=queue_limit,
            on_decision=on_decision,
            seed=seed,
            pairs=self.pairs,
        )
        self.streams = 0
        for worker in workers:
            self.join(worker, slots=slots)

    def join(self, worker: str, *, slots: int = 4, namespace: bytes = b"n") -> None:
        self.streams += 1
        role = Role(worker.partition("-")[0])
        join = Join(
            worker, role, f"{worker}:1", Incarnation(self.streams), namespace,
            model="m", max_model_len=512, block_tokens=16, num_blocks=1000, num_slots=slots,
        )  # fmt: skip
        load = Load(free_slots=slots, free_blocks=1000)
        self.registry.announce(Record(join, load, self.streams, self.now_s, self.now_s))

    def leave(self, worker: str) -> None:
        record = self.registry.find(worker)
        assert record is not None
        self.registry.withdraw(worker, record.stream)

    def report(self, worker: str, **fields: Any) -> None:
        record = self.registry.find(worker)
        assert record is not None
        load = replace(record.load, **fields)
        assert self.registry.report(worker, record.stream, load, self.now_s)
        self.dispatcher.reported(replace(record, load=load, reported_s=self.now_s))

    def want(self, prompt_len: int = 10, deadline_s: float = 60, **fields: Any) -> int:
        want = Want("r", prompt_len=prompt_len, max_new=7, deadline_s=deadline_s, **fields)
        return self.dispatcher.open(want, self.now_s)

    def progress(self, lease: int, progress: Progress) -> None:
        self.dispatcher.progress(lease, progress, self.now_s)

    def again(
        self,
        lease: int,
        failed: str,
        have: Have,
        attempt: int = 2,
        code: str = "",
        kind: str = "",
        partner: str = "",
    ) -> None:
        again = Again(attempt, failed, "test", have, code, kind, partner)
        self.dispatcher.again(lease, again, self.now_s)

    def rank(self, worker: str) -> Rank:
        """Its present life."""
        record = self.registry.find(worker)
        assert record is not None
        return record.rank

    def answers(self, after_s: float = 0.0) -> dict[int, Answer]:
        self.now_s += after_s
        self.dispatcher.dispatch(self.now_s)
        answers = dict(self.dispatcher.outbox)
        self.dispatcher.outbox.clear()
        return answers

    def answers_to(self, lease: int) -> Answer:
        """What one lease hears now."""
        return self.answers()[lease]

    def stay_alive(self, after_s: float) -> dict[int, Answer]:
        """Let time pass while everybody keeps reporting."""
        answers: dict[int, Answer] = {}
        end_s = self.now_s + after_s
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 1)
            for record in self.registry.records():
                self.report(record.join.member_id)
            answers |= self.answers()
        return answers


def worker_of(answer: Answer) -> str:
    assert isinstance(answer, PrefillAt | SkipTo | DecodeAt), answer
    return answer.rank.worker_id
