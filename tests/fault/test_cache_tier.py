"""An engine over a real store that is damaged, full, slow, killed or stopped.

What is lost is computed, and the tokens are those of an engine alone. The store's own tests strike
it harder (tests/contract/test_store_process.py, tests/unit/kvcache_store/test_damage.py); these say
what an engine makes of it.
"""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diptych.core.blocks import chain
from diptych.core.ids import Key, WorkerId
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Row, StepOutput
from diptych.engine.build import build_engine
from diptych.engine.loading import BYTE_S
from diptych.engine.loop import Engine
from diptych.engine.options import Options
from diptych.engine.tier import Found, Place
from diptych.engine.tiering import Loaded
from diptych.kvcache_store.client import LOAD_S, StoreTier
from diptych.kvcache_store.volume import Folder
from diptych.testing.clock import settle
from diptych.testing.store_process import StoreProcess, store_process
from diptych.testing.stores import running_store
from diptych.testing.volumes import PoorVolume

TINY = Path(__file__).parents[1] / "golden" / "tiny-text"
LOOKUP_S = 5.0  # the machine may be busy
SCOPE = b"s" * 16
PROMPTS = [
    tuple(random.Random(number).choices(range(3, 300), k=length))
    for number, length in enumerate((210, 180, 150, 190, 160, 200))
]


@dataclass
class Worker:
    """An engine that has seen nothing, and what it says."""

    engine: Engine
    tier: StoreTier
    rows: dict[str, list[Row]] = field(default_factory=dict)
    loads: Counter[str] = field(default_factory=Counter)

    async def answer(self, number: int) -> tuple[int, ...]:
        return await self.go_on(number, PROMPTS[number], 6)

    async def go_on(
        self, number: int, prompt: tuple[int, ...], max_new: int, scope: bytes = SCOPE
    ) -> tuple[int, ...]:
        name = f"r{number}-{len(self.rows)}"
        sampling = Sampling(temperature=1.0, seed=number, ignore_eos=True)
        asked = Generation(Key(name, 1), prompt, sampling, max_new, scope=scope, tenant="alice")
        rows = self.rows.setdefault(name, [])
        await self.engine.submit(asked, hold=False)
        await settle(lambda: bool(rows and rows[-1].finish), within_s=30)
        return tuple(token for row in rows for token in row.token_ids)

    async def answers(self) -> list[tuple[int, ...]]:
        return [await self.answer(number) for number in range(len(PROMPTS))]

    @property
    def brought(self) -> list[int]:
        """Tokens of each prompt that came from the tier."""
        firsts = [rows[0] for rows in self.rows.values()]
        return [row.cached_memory + row.cached_disk for row in firsts]


@asynccontextmanager
async def worker(addresses: Sequence[str], tier: StoreTier | None = None) -> AsyncIterator[Worker]:
    """At its end all its pages are free, and all that it computed was offered."""
    tier = tier or StoreTier(addresses, WorkerId("prefill-1"), lookup_s=LOOKUP_S)

    def on_step(output: StepOutput) -> None:
        for row in output.rows:
            it.rows[row.key.request_id].append(row)

    def on_load(loaded: Loaded) -> None:
        it.loads[loaded.result] += 1

    engine = build_engine(
        TINY,
        model_name="tiny",
        on_step=on_step,
        loop=asyncio.get_running_loop(),
        options=Options(block_tokens=8),
        open_tier=tier.bind if addresses else None,
        on_load=on_load,
    )
    it = Worker(engine, tier)
    if engine._tiering is not None:
        engine._tiering._rates.row_s = 1.0  # whatever the tier has is worth loading
    try:
        yield it
        counts = engine.counts
        await settle(lambda: counts().free_blocks == counts().num_blocks, within_s=10)
        await tier.flush(within_s=10)
    finally:
        await engine.stop()
        await tier.close()
    engine._ledger.check()


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    """What an engine says that has no tier."""

    async def alone() -> list[tuple[int, ...]]:
        async with worker(()) as it:
            return await it.answers()

    return asyncio.run(alone())


async def fill(folder: Path, expected: list[tuple[int, ...]]) -> list[int]:
    """A folder with all prompts; how much of each a worker then finds."""
    async with running_store(folder) as store, worker([store.address]) as first:
        assert await first.answers() == expected
    async with running_store(folder) as store, worker([store.address]) as second:
        assert await second.answers() == expected
        assert all(second.brought)
        return second.brought


async def test_k3_the_store_has_no_block_whose_last_token_was_only_sampled(tmp_path: Path) -> None:
    """Outputs end before a block's border, on it, and behind it; then the chat goes on."""
    prompt = PROMPTS[0][:44]
    lengths = range(3, 6)  # 47 to 49 tokens: the last three of the sixth block, of 8 each
    async with running_store(tmp_path) as store:
        async with worker([store.address]) as first:
            said = [await first.go_on(n, prompt[n:] + prompt[:n], n) for n in lengths]
            seconds = [
                prompt[n:] + prompt[:n] + output + PROMPTS[1][:60]
                for n, output in zip(lengths, said, strict=True)
            ]
            names = [
                chain(SCOPE, second[: 44 + n], 8)
                for n, second in zip(lengths, seconds, strict=True)
            ]
            written = [(43 + n) // 8 for n in lengths]
            wanted = {name for each, n in zip(names, written, strict=True) for name in each[:n]}
            there = store.tiers.memory.blocks
            await settle(lambda: wanted <= set(there()), within_s=10)
        for each, n in zip(names, written, strict=True):
            assert not set(each[n:]) & set(there())
        async with worker(()) as alone, worker([store.address]) as other:
            for n, second in zip(lengths, seconds, strict=True):
                cold = await alone.go_on(n, second, 6, scope=b"")
                assert await other.go_on(n, second, 6) == cold
            assert other.brought == [(43 + n) // 8 * 8 for n in lengths]


async def test_f14_flipped_bits_cost_hits_and_never_a_token(
    tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    whole = await fill(tmp_path, expected)
    draw, flipped = random.Random(14), 0
    for path in (tmp_path / "segments").glob("*.seg"):
        with path.open("r+b") as file:
            data = bytearray(file.read())
            for at in range(draw.randrange(20_000), len(data), 20_000):
                data[at] ^= 1 << draw.randrange(8)
                flipped += 1
            file.seek(0)
            file.write(data)
    assert flipped > 10
    async with running_store(tmp_path) as store:
        async with worker([store.address]) as it:
            assert await it.answers() == expected
            assert sum(it.brought) < sum(whole)
            found = it.brought
        assert store.tiers.disk is not None
        assert store.tiers.disk.reader.counts.corrupt > 0
        async with worker([store.address]) as it:  # what was computed again is stored again
            assert await it.answers() == expected
            assert sum(it.brought) > sum(found)


async def test_f15_a_slow_disk_is_noticed_and_answers_stay(
    tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    await fill(tmp_path, expected)
    volume = PoorVolume(Folder(tmp_path / "segments"), bytes_a_second=10_000)
    async with (
        running_store(tmp_path, volume=volume, memory_bytes=1 << 20, read_s=0.2) as store,
        worker([store.address]) as it,
    ):
        began_s = asyncio.get_running_loop().time()
        assert await it.answers() == expected
        assert asyncio.get_running_loop().time() - began_s < 2 * len(PROMPTS) * 2 * LOAD_S
        assert it.loads["failed"] + it.loads["partial"] > 0
        assert it.engine._tiering is not None
        assert it.engine._tiering._rates.byte_s > BYTE_S
        volume.bytes_a_second = None


async def test_f15_a_full_disk_costs_what_it_cannot_hold(
    tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    volume = PoorVolume(Folder(tmp_path / "segments"), room_bytes=150_000)
    async with running_store(tmp_path, volume=volume) as store:
        async with worker([store.address]) as first:
            assert await first.answers() == expected
        async with worker([store.address]) as second:
            assert await second.answers() == expected
        assert store.tiers.queue is not None
        assert store.tiers.queue.counts.dropped_room > 0
    async with running_store(tmp_path) as store, worker([store.address]) as third:
        assert await third.answers() == expected


async def test_a_store_killed_in_the_middle_of_write_behind_costs_no_token(
    tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    draw = random.Random(9)
    with store_process(tmp_path) as store:
        for _ in range(2):
            async with worker([store.address]) as it:
                killing = asyncio.create_task(kill(store, draw.uniform(0.1, 0.8)))
                assert await it.answers() == expected
                await killing
            await asyncio.to_thread(store.start)
        async with worker([store.address]) as it:
            assert await it.answers() == expected
        async with worker([store.address]) as it:
            assert await it.answers() == expected
            assert all(it.brought)


async def kill(store: StoreProcess, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await asyncio.to_thread(store.end, signal.SIGKILL)


class StoppedInLoads(StoreTier):
    """The store falls silent when something has been found and is to be fetched."""

    store: StoreProcess

    async def load(self, found: Found, places: Sequence[Place]) -> int:
        self.store.send(signal.SIGSTOP)
        return await super().load(found, places)


@pytest.mark.timeout(120)
async def test_a_store_that_falls_silent_during_a_load_holds_a_request_to_its_deadline(
    tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    with store_process(tmp_path) as store:
        async with worker([store.address]) as first:
            assert await first.answers() == expected
        tier = StoppedInLoads([store.address], WorkerId("prefill-2"), lookup_s=LOOKUP_S)
        tier.store = store
        async with worker([store.address], tier) as it:
            began_s = asyncio.get_running_loop().time()
            assert await it.answer(0) == expected[0]
            assert asyncio.get_running_loop().time() - began_s < 2 * 2 * LOAD_S + LOOKUP_S
            assert (it.loads["failed"], it.brought) == (1, [0])
            assert await it.answer(1) == expected[1]  # whose look-up is not even sent
            store.send(signal.SIGCONT)
        async with worker([store.address]) as it:
            assert await it.answers() == expected
            assert all(it.brought)
