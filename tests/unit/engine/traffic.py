"""Random requests over engines without a thread, and what every one of them was told."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import PRIORITIES, Generation
from diptych.core.sampling import Sampling
from diptych.core.step import StepOutput
from diptych.engine.ledger import Ledger
from diptych.engine.stepper import Stepper


@dataclass
class Heard:
    """The tokens of each request, and its end. Steps may break if `faults` are expected."""

    faults: bool = False
    tokens: dict[Key, list[int]] = field(default_factory=dict)
    finished: dict[Key, Finish] = field(default_factory=dict)
    dropped: set[Key] = field(default_factory=set)

    def is_cut(self, key: Key) -> bool:
        """Whether a request was not allowed to come to its own end."""
        return key in self.dropped or self.finished.get(key) is Finish.ERROR

    def __call__(self, output: StepOutput) -> None:
        for row in output.rows:
            assert row.key not in self.dropped, "a dropped request spoke"
            assert row.key not in self.finished, "a finished request went on"
            assert self.faults or not row.message, row.message
            self.tokens.setdefault(row.key, []).extend(row.token_ids)
            if row.finish is not None:
                self.finished[row.key] = row.finish


class PageBytes(Protocol):
    """Whatever can be copied page by page."""

    def block(self, page: int) -> Any: ...

    def slot(self, slot: int) -> Any: ...


@dataclass
class Rig:
    """An engine without a thread."""

    ledger: Ledger
    stepper: Stepper[Any]
    pages: PageBytes

    def step(self, heard: Heard) -> bool:
        """Whether there was anything to do."""
        return self.stepper.step(heard)


class Hybrid:
    """One engine that does everything."""

    def __init__(self, rig: Rig) -> None:
        self.rigs = [rig]
        self.heard = Heard()

    def submit(self, generation: Generation) -> None:
        self.rigs[0].ledger.submit(generation, hold=False)

    def drop(self, key: Key) -> None:
        self.heard.dropped.add(key)
        for rig in self.rigs:
            rig.ledger.drop(key)

    def step(self) -> bool:
        moved = [rig.step(self.heard) for rig in self.rigs]
        return any(moved)


class Split(Hybrid):
    """One engine computes prompts, another one the rest; pages are copied between them."""

    def __init__(self, prefill: Rig, decode: Rig) -> None:
        super().__init__(prefill)
        self.rigs.append(decode)
        self._coming: dict[Key, Generation] = {}  # asked for, and not handed over yet

    def submit(self, generation: Generation) -> None:
        self._coming[generation.key] = generation
        self.rigs[0].ledger.submit(generation, hold=True)

    def drop(self, key: Key) -> None:
        self._coming.pop(key, None)
        super().drop(key)

    def step(self) -> bool:
        moved = [self._hand_over(g) for g in list(self._coming.values())]
        return super().step() or any(moved)

    def _hand_over(self, generation: Generation) -> bool:
        source, target = self.rigs
        key = generation.key
        if key in self.heard.finished:
            del self._coming[key]
            return False
        held = source.ledger.held(key)
        if held is None:
            return False
        reserved = target.ledger.reserve(key, held.num_tokens + 1)
        if reserved is None:
            return False
        for mine, theirs in zip(held.blocks, reserved.blocks, strict=False):
            target.pages.block(theirs)[:] = source.pages.block(mine)
        target.pages.slot(reserved.slot)[:] = source.pages.slot(held.slot)
        source.ledger.drop(key)
        del self._coming[key]
        forced = generation.forced + tuple(self.heard.tokens[key])
        target.ledger.adopt(
            Generation(
                key,
                generation.prompt,
                generation.sampling,
                generation.max_new,
                forced,
                generation.scope,
                generation.priority,
                generation.tenant,
            )
        )
        return True


@dataclass
class Traffic:
    """Random requests. Some begin like others, some go on where others ended."""

    rng: random.Random
    vocab_size: int
    max_model_len: int
    prompt_lens: tuple[int, ...]
    output_lens: tuple[int, ...]
    reuse: float = 0.7  # how many begin like an earlier one, or where it ended
    texts: list[tuple[int, ...]] = field(default_factory=list)
    count: int = 0

    def request(self) -> Generation:
        rng = self.rng
        self.count += 1
        prompt = self._beginning() + self._words(rng.choice(self.prompt_lens))
        prompt = prompt[: self.max_model_len * 3 // 4]
        self.texts = [*self.texts[-8:], prompt]
        forced = self._words(rng.choice([0, 0, 0, 3]))
        return Generation(
            Key(f"r{self.count}", 1),
            prompt,
            Sampling(
                temperature=rng.choice([0.0, 0.7, 1.0]),
                seed=rng.getrandbits(64),
                ignore_eos=rng.random() < 0.5,
                stop_token_ids=self._words(rng.choice([0, 0, 2, 9])),
            ),
            max_new=len(forced) + rng.choice(self.output_lens),
            forced=forced,
            scope=rng.choice([b"", b"s" * 16, b"s" * 16, b"s" * 16]),
            priority=rng.choice(PRIORITIES),
            tenant=rng.choice("ab"),
        )

    def answer(self, generation: Generation, tokens: list[int]) -> None:
        """Let later requests go on behind an answer."""
        self.texts.append(generation.tokens + tuple(tokens))

    def _beginning(self) -> tuple[int, ...]:
        rng = self.rng
        if not self.texts or rng.random() >= self.reuse:
            return ()
        text = rng.choice(self.texts)
        return text[: rng.randrange(len(text))] if rng.random() < 0.3 else text

    def _words(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(2, self.vocab_size) for _ in range(count))


def drive(
    engine: Hybrid, traffic: Traffic, count: int, check: Callable[[], None]
) -> dict[Key, Generation]:
    """Let `count` requests come, go and run to their ends; all of them."""
    rng, asked, open_keys = traffic.rng, dict[Key, Generation](), list[Key]()
    patience = 0
    while len(asked) < count or open_keys:
        if len(asked) < count and rng.random() < 0.5:
            generation = traffic.request()
            asked[generation.key] = generation
            open_keys.append(generation.key)
            engine.submit(generation)
        elif open_keys and rng.random() < 0.02:
            engine.drop(open_keys.pop(rng.randrange(len(open_keys))))
        else:
            patience = 0 if engine.step() else patience + 1
            assert patience < 100 or len(asked) < count, "nothing moves any more"
            check()
        for key in [key for key in open_keys if key in engine.heard.finished]:
            open_keys.remove(key)
            traffic.answer(asked[key], engine.heard.tokens.get(key, []))
    while engine.step():
        check()
    return asked
