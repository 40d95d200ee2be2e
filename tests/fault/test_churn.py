"""Workers that come and go, and clients that leave, by the hundred: nothing hangs, nothing stays.

Router, sessions and transfers are real; engines are scripted, so a worker starts in a moment.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from diptych.core.errors import Broken, DiptychError
from diptych.core.ids import Key, Rank
from diptych.core.phases import Phase
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.hops import Prefill, PrefillCall
from diptych.gateway.notes import Course
from diptych.testing.cluster import Cluster, cluster
from diptych.testing.scripted import Script, continuation

SCRIPT = Script(num_blocks=160, num_slots=8, chunk_tokens=32, step_s=0.005)
DEADLINES = Deadlines(queue_s=10, first_token_s=5, room_s=5, reserve_s=5, next_token_s=5)
DEADLINE_S = 30.0  # of a request: more than all of its waits in a row
BASELINE_S = 5.0
NAMES = [f"{role}-{number}" for role in ("prefill", "decode") for number in (1, 2, 3, 4)]
FIRST = ("prefill-1", "prefill-2", "decode-1", "decode-2")


def asked(number: int) -> Generation:
    draw = random.Random(number)
    prompt = tuple(draw.randrange(3, 380) for _ in range(draw.randrange(10, 150)))
    sampling = Sampling(seed=number)
    return Generation(
        Key(f"r{number}", 1), prompt, sampling, draw.randrange(2, 40), scope=b"s" * 16
    )


class Told(list[int]):
    """Tokens, and a bell that rings when more have come."""

    def __init__(self) -> None:
        super().__init__()
        self.bell = asyncio.Event()

    def extend(self, more: Iterable[int]) -> None:
        super().extend(more)
        self.bell.set()


class WatchedPrefill:
    """Knows which prompts have been opened at a worker."""

    def __init__(self, prefill: Prefill) -> None:
        self._prefill = prefill
        self.opened: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def open(self, rank: Rank, generation: Generation, deadline_s: float) -> PrefillCall:
        self.opened[generation.key.request_id].set()
        return self._prefill.open(rank, generation, deadline_s)


@dataclass
class Moment:
    """When a client leaves: so long after its request has come to a phase."""

    phase: Phase
    after_s: float
    prefill: WatchedPrefill

    async def comes(self, request_id: str, sent: Told) -> None:
        tokens = {Phase.HANDOFF: 1, Phase.DECODE: 2}.get(self.phase, 0)
        while len(sent) < tokens:
            sent.bell.clear()
            await sent.bell.wait()
        if self.phase is Phase.PREFILL:
            await self.prefill.opened[request_id].wait()
        await asyncio.sleep(self.after_s)


@dataclass
class Ends:
    """What became of the requests."""

    right: int = 0
    retried: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # by error code
    at: Counter[Phase] = field(default_factory=Counter)  # where those were that were given up

    async def follow(self, it: Cluster, number: int) -> None:
        """One request to its end; wrong tokens, unclear errors and silence are failures."""
        generation, sent, over = asked(number), list[int](), list[Course]()
        expected = continuation(generation)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await it.answer(generation, sent, over.append)
        except TimeoutError:
            pytest.fail(f"{generation.key} hangs: {over[0].stays[-1]}")
        except DiptychError as error:
            assert not isinstance(error, Broken), f"{generation.key}: {error.message}"
            assert sent == expected[: len(sent)]
            self.failed[error.code] += 1
        else:
            assert sent == expected
            self.right += 1
        self.retried += over[0].stays[-1].attempt > 1

    async def give_up(self, it: Cluster, number: int, moment: Moment) -> None:
        """One request that is given up at a moment, unless it has ended before."""
        generation, sent, over = asked(number), Told(), list[Course]()
        answering = asyncio.create_task(it.answer(generation, sent, over.append))
        giving_up = asyncio.create_task(moment.comes(generation.key.request_id, sent))
        await asyncio.wait((answering, giving_up), return_when=asyncio.FIRST_COMPLETED)
        for task in (answering, giving_up):
            task.cancel()
        await asyncio.gather(answering, giving_up, return_exceptions=True)
        assert sent == continuation(generation)[: len(sent)]
        assert over[0].result in ("ok", "cancelled")
        self.right += over[0].result == "ok"
        self.at[over[0].stays[-1].phase] += over[0].result == "cancelled"


async def come_or_go(it: Cluster, script: Script, draw: random.Random) -> None:
    """Add or kill a worker; one of each role is always left."""
    roles = Counter(name.partition("-")[0] for name in it.workers)
    dispensable = [name for name in it.workers if roles[name.partition("-")[0]] > 1]
    missing = [name for name in NAMES if name not in it.workers]
    if dispensable and (draw.random() < 0.5 or not missing):
        await it.kill(draw.choice(dispensable))
    else:
        await it.add(draw.choice(missing), script)


async def live_through(
    num_requests: int, script: Script, *, at_once: int, every: int, gap_s: float = 0.0
) -> Ends:
    """Requests, and before each so many of them a worker that comes or goes."""
    ends, draw, places = Ends(), random.Random("churn"), asyncio.Semaphore(at_once)
    async with cluster(DEADLINES) as it:
        for name in FIRST:
            await it.add(name, script)

        async def follow(number: int) -> None:
            try:
                await ends.follow(it, number)
            finally:
                places.release()

        async with asyncio.TaskGroup() as requests:
            for number in range(num_requests):
                await places.acquire()
                if number % every == every - 1:
                    await come_or_go(it, script, draw)
                requests.create_task(follow(number))
                await asyncio.sleep(gap_s)
        await it.settled(within_s=2 * BASELINE_S)
    assert ends.right + sum(ends.failed.values()) == num_requests
    return ends


async def test_r10_requests_that_live_through_constant_joining_and_killing_all_end() -> None:
    ends = await live_through(300, SCRIPT, at_once=24, every=12)
    assert ends.retried > 10, ends
    assert ends.right > 270, ends


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_r10_fifteen_hundred_requests_while_a_worker_comes_or_goes_every_second() -> None:
    slow = replace(SCRIPT, step_s=0.03, num_slots=16, num_blocks=400)
    ends = await live_through(1500, slow, at_once=100, every=30, gap_s=1 / 30)
    assert ends.retried > 50, ends
    assert ends.right > 1450, ends


async def test_f12_p6_four_hundred_requests_given_up_in_every_state_leave_nothing() -> None:
    ends, draw = Ends(), random.Random("given up")
    longest_s = {Phase.ROUTE: 2.0, Phase.PREFILL: 0.05, Phase.HANDOFF: 0.01, Phase.DECODE: 0.1}
    async with cluster() as it:
        for name in FIRST:
            await it.add(name, replace(SCRIPT, num_slots=16, num_blocks=400))
        prefill = WatchedPrefill(it.pipeline.hops.prefill)
        it.pipeline.hops = replace(it.pipeline.hops, prefill=prefill)
        async with asyncio.TaskGroup() as requests:
            for number in range(400):
                phase = draw.choice(list(longest_s))
                moment = Moment(phase, draw.uniform(0.0, longest_s[phase]), prefill)
                requests.create_task(ends.give_up(it, number, moment))
        await it.settled(within_s=2 * BASELINE_S)
    assert ends.right > 5, ends
    assert all(ends.at[phase] > 20 for phase in longest_s), ends
