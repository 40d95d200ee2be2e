"""Which canary runs next, and what its end says.

Who serves nothing comes first, a few at a time; pairs that nobody waits for are proven one by one.
Pure but for its own state; the time is an argument.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, auto
from math import inf

from diptych.core.ids import Rank
from diptych.router.pairs import FIRST_RETRY_S, Life, Pairs, retry_s

AT_ONCE = 4
HEDGE_S = 1.0  # whose canary takes longer is tried with somebody else, too
BACKGROUND_GAP_S = 1.0
AGAIN_S = 600.0  # then a pair is proven anew
NEW_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Job:
    """A canary: prefill computes the prompt, decode goes on. A hybrid worker does both alone."""

    prefill: Rank | None
    decode: Rank
    prompt_len: int


class Blame(StrEnum):
    """Why a canary did not come through."""

    NOBODY = auto()  # there was no room: it says nothing
    PREFILL = auto()
    DECODE = auto()
    PAIR = auto()  # either may do well with others


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a canary ended: with all its tokens, or why not."""

    tokens: tuple[int, ...] = ()
    blame: Blame | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the canary's prompt is answered with, and who said so first."""

    tokens: tuple[int, ...]
    whose: str


class Trials:
    """Of one fleet's pairs."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._running: dict[Job, float] = {}  # since when
        self._answers: dict[tuple[bytes, int], _Answer] = {}  # by namespace and prompt
        self._background_s = -inf

    def due(self, now_s: float) -> list[Job]:
        """Canaries to begin now; each must be told of."""
        jobs: list[Job] = []
        while len(self._running) < AT_ONCE and (job := self._urgent(now_s)) is not None:
            self._running[job] = now_s
            jobs.append(job)
        if not self._running and now_s >= self._background_s:
            job = self._background(now_s)
            if job is not None:
                self._background_s = now_s + BACKGROUND_GAP_S
                self._running[job] = now_s
                jobs.append(job)
        return jobs

    def next_s(self, now_s: float) -> float | None:
        """When there may be something due that is not now."""
        times = [self._background_s]
        times += [life.not_before_s for life in self._pairs.here.values()]
        times += [since_s + HEDGE_S for since_s in self._running.values()]
        for pair in self._pairs.known.values():
            times += [pair.not_before_s, pair.proven_s + AGAIN_S]
        return min((at_s for at_s in times if at_s > now_s), default=None)

    def told(self, job: Job, verdict: Verdict, now_s: float) -> Verdict:
        """A canary has ended; what it says after all."""
        del self._running[job]
        names = [rank for rank in (job.prefill, job.decode) if rank is not None]
        lives = [life for rank in names if (life := self._pairs.life(rank)) is not None]
        if len(lives) < len(names):
            return verdict  # another life runs there
        if verdict.blame is None:
            verdict = self._judged(job, verdict, lives)
        if verdict.blame is None and job.prefill is not None:
            self._pairs.worked(job.prefill, job.decode, now_s)
        elif verdict.blame is None:
            self._pairs.worked_alone(job.decode)
        else:
            self._blame(job, verdict, lives, now_s)
        return verdict

    # What is tried.

    def _urgent(self, now_s: float) -> Job | None:
        """For the worker that needs it most, the partner that tells most."""
        busy = self._busy(now_s)
        sides = self._pairs.sides()

        def is_free(life: Life) -> bool:
            return life.is_able and life.rank not in busy and life.not_before_s <= now_s

        for life in sorted(filter(self._is_needy, self._pairs.here.values()), key=self._need):
            if not is_free(life):
                continue
            partners = [p for p in sides[life.join.namespace].partners(life) if is_free(p)]
            for job in self._options(life, partners, now_s):
                if job not in self._running:
                    return job
        return None

    def _is_needy(self, life: Life) -> bool:
        return not life.is_proven or life.name in self._pairs.unready

    def _need(self, life: Life) -> tuple[bool, int, int]:
        return life.name not in self._pairs.unready, life.failures, life.number

    def _options(self, life: Life, partners: list[Life], now_s: float) -> Iterable[Job]:
        """Fresh workers prove each other; after a failure a proven one tells whose fault it is."""
        if life.is_hybrid:
            return [_job(None, life)]
        pairs = [(life, p) if life.is_prefill else (p, life) for p in partners]
        options = []
        for (prefill, decode), partner in zip(pairs, partners, strict=True):
            pair = self._pairs.pair_of(prefill, decode)
            tells_little = life.failures > 0 and not partner.is_proven
            order = pair.failures, tells_little, partner.failures, partner.is_proven
            if pair.not_before_s <= now_s:
                options.append((*order, partner.number, _job(prefill, decode)))
        return [option[-1] for option in sorted(options, key=lambda option: option[:-1])]

    def _background(self, now_s: float) -> Job | None:
        """The pair whose proof is the oldest; before all, one that has none."""

        def serves(life: Life) -> bool:
            return life.is_able and not self._is_needy(life)

        oldest_s, best = inf, None
        for side in self._pairs.sides().values():
            serving = list(filter(serves, side.decode))
            for prefill in filter(serves, side.prefill):
                for decode in serving:
                    pair = self._pairs.pair_of(prefill, decode)
                    is_due = max(pair.not_before_s, pair.proven_s + AGAIN_S) <= now_s
                    if is_due and pair.proven_s < oldest_s:
                        oldest_s, best = pair.proven_s, (prefill, decode)
        return _job(*best) if best is not None else None

    def _busy(self, now_s: float) -> set[Rank]:
        fresh = [job for job, since_s in self._running.items() if now_s < since_s + HEDGE_S]
        return {rank for job in fresh for rank in (job.prefill, job.decode) if rank is not None}

    # What it says.

    def _judged(self, job: Job, verdict: Verdict, lives: list[Life]) -> Verdict:
        """Equal prompts have equal answers, where all that took part promise it."""
        if not all(life.join.is_deterministic for life in lives):
            return verdict
        namespace = lives[0].join.namespace
        known = self._answers.get((namespace, job.prompt_len))
        here = self._pairs.here.values()
        if known is None or not any(x.is_proven for x in here if x.join.namespace == namespace):
            whose = " and ".join(life.name for life in lives)
            known = self._answers[namespace, job.prompt_len] = _Answer(verdict.tokens, whose)
        if known.tokens == verdict.tokens:
            return verdict
        return Verdict(blame=Blame.PAIR, why=f"other tokens than {known.whose}")

    def _blame(self, job: Job, verdict: Verdict, lives: list[Life], now_s: float) -> None:
        is_between = verdict.blame is Blame.PAIR
        if job.prefill is not None and is_between:
            self._pairs.failed(job.prefill, job.decode, verdict.why, now_s)
        elif job.prefill is not None:
            self._pairs.pair(job.prefill, job.decode).not_before_s = now_s + FIRST_RETRY_S
        at_fault = {Blame.PREFILL: lives[:1], Blame.DECODE: lives[-1:]}
        for life in at_fault.get(verdict.blame or Blame.NOBODY, lives):
            if verdict.blame is Blame.NOBODY:
                life.not_before_s = now_s + FIRST_RETRY_S
            elif self._is_needy(life):
                life.failures += 1
                life.not_before_s = now_s + retry_s(life.failures)
            if job.prefill is None or not is_between:
                self._pairs.blamed(life, verdict.why, for_good=is_between)


def _job(prefill: Life | None, decode: Life) -> Job:
    """More than a block, if that fits: then a block, a tail and a slot move."""
    joins = [life.join for life in (prefill, decode) if life is not None]
    limit = min((j.max_model_len for j in joins if j.max_model_len), default=1 << 31)
    grain = max(1, decode.join.block_tokens)
    length = max(1, min(grain + max(1, grain // 2), limit - NEW_TOKENS))
    return Job(prefill.rank if prefill is not None else None, decode.rank, length)
