"""The tiny model over a cache tier: what is brought gives the tokens that computing gives."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from diptych.core.blocks import chain as block_chain
from diptych.core.blocks import namespace
from diptych.core.blocks import scope as scope_of
from diptych.core.ids import Key
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.engine.build import build_engine
from diptych.engine.options import Options
from diptych.testing.clock import settle
from diptych.testing.tier import MemoryTier

from .conftest import TINY, Watched, make_generation, watched

SCOPE = b"s" * 16
GRAIN = 8


@asynccontextmanager
async def engine(tier: MemoryTier | None, **options: object) -> AsyncIterator[Watched]:
    """A fresh engine: it holds nothing yet, the tier may."""

    def make(**where: object) -> object:
        chosen = Options(numerics="served", block_tokens=GRAIN, **options)
        open_tier = (lambda *_: tier) if tier else None
        return build_engine(TINY, model_name="tiny", options=chosen, open_tier=open_tier, **where)

    async with watched(make) as it:
        rates = it.engine._tiering._rates if it.engine._tiering else None
        if rates is not None:
            rates.row_s, rates.wait_s = 1.0, 0.0  # whatever the tier has is worth loading
        yield it
        it.engine._ledger.check()


def generation(name: str, prompt: tuple[int, ...], **fields: object) -> Generation:
    sampling = Sampling(temperature=1.0, seed=3, ignore_eos=True)
    made = make_generation(name, prompt=prompt, max_new=12, sampling=sampling, scope=SCOPE)
    return replace(made, **fields)


def prompt_of(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, 300) for _ in range(length))


async def answer(it: Watched, asked: Generation) -> tuple[int, ...]:
    await it.engine.submit(asked, hold=False)
    await it.finished(asked.key.request_id)
    return it.tokens(asked.key.request_id)


async def answers(it: Watched, asked: Iterable[Generation]) -> list[tuple[int, ...]]:
    """All at once."""
    return await asyncio.gather(*(answer(it, each) for each in asked))


async def test_another_engine_finds_what_one_has_computed(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    async with engine(None) as alone:
        expected = await answer(alone, generation("a", prompt))
    async with engine(tier) as first:
        assert await answer(first, generation("a", prompt)) == expected
        assert first.rows("a")[0].cached_memory == 0
    assert tier.blocks and tier.anchors
    async with engine(tier) as second:
        assert await answer(second, generation("b", prompt)) == expected
        row = second.rows("b")[0]
        assert row.cached_memory == row.cached_tokens > 0
        counts = second.engine.counts()
        assert counts.memory_hit_tokens_total == counts.hit_tokens_total == row.cached_memory
        assert await answer(second, generation("c", prompt)) == expected
        asked = counts.tier_query_tokens_total
        assert counts.memory_hit_tokens_total <= asked <= len(prompt)
        assert second.engine.counts().tier_query_tokens_total == asked  # nothing was missing here
        again = second.rows("c")[0]  # now its own pages hold it
        assert (again.cached_tokens, again.cached_memory) == (row.cached_tokens, 0)
    assert tier.loads == 1


async def test_conversations_go_on_wherever_they_are_computed(rng: random.Random) -> None:
    turns: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    async with engine(None) as alone:
        prompt = prompt_of(rng, 90)
        for turn in range(4):
            output = await answer(alone, generation(f"t{turn}", prompt, scope=b""))
            turns.append((prompt, output))
            prompt += output + prompt_of(rng, 20)
    tier = MemoryTier(name="disk")
    for turn, (prompt, output) in enumerate(turns):
        async with engine(tier) as it:  # each turn on an engine that has seen nothing
            assert await answer(it, generation(f"t{turn}", prompt)) == output
            row = it.rows(f"t{turn}")[0]
            assert (row.cached_disk > 0) is (turn > 0)
            assert row.cached_disk == row.cached_tokens


def said(it: Watched, name: str) -> list[tuple[int, float]]:
    """Tokens with their log-probabilities: what the model computed, bit for bit."""
    rows = it.rows(name)
    tokens = [token for row in rows for token in row.token_ids]
    values = [logprob.value for row in rows for logprob in row.logprobs]
    return list(zip(tokens, values, strict=True))


async def test_k3_an_output_that_ends_on_a_blocks_border_leaves_its_last_block_out(
    rng: random.Random,
) -> None:
    """The last token was sampled, not written. The next turn equals a cold run, wherever its
    beginning is found: in the pages of who computed it, or in the tier."""
    length, sampling = 44, Sampling(seed=3, ignore_eos=True, logprobs=0)
    lengths = [n for end in (48, 56) for n in (end - length - 1, end - length, end - length + 1)]
    prompts = {n: prompt_of(rng, length) for n in lengths}
    more = prompt_of(rng, 60)  # all of the first turn may be adopted
    tier = MemoryTier()

    def turn(n: int, prompt: tuple[int, ...], max_new: int, scope: bytes = SCOPE) -> Generation:
        name = f"{n}-{len(prompt)}"
        return generation(name, prompt, max_new=max_new, sampling=sampling, scope=scope)

    seconds: dict[int, Generation] = {}
    async with engine(None) as own, engine(tier) as first:
        firsts = [turn(n, prompt, n) for n, prompt in prompts.items()]
        outputs = await answers(own, firsts)
        assert await answers(first, firsts) == outputs
        for n, asked, output in zip(lengths, firsts, outputs, strict=True):
            seconds[n] = turn(n, asked.prompt + output + more, 3)
        await answers(own, seconds.values())
        for n, second in seconds.items():
            chain = block_chain(SCOPE, second.prompt[: length + n], GRAIN)
            is_there = [(SCOPE, name) in tier.blocks for name in chain]
            num_written = (length + n - 1) // GRAIN
            assert is_there == [i < num_written for i in range(len(chain))]
            assert (len(chain) > num_written) is ((length + n) % GRAIN == 0)
        async with engine(tier) as other, engine(None) as cold:
            await answers(other, seconds.values())
            await answers(cold, [replace(second, scope=b"") for second in seconds.values()])
            for n, second in seconds.items():
                name = second.key.request_id
                assert said(own, name) == said(other, name) == said(cold, name)
                for it, key in ((own, "cached_tokens"), (other, "cached_memory")):
                    found = getattr(it.rows(name)[0], key)
                    assert found == (length + n - 1) // GRAIN * GRAIN


async def test_k8_an_adapter_and_a_salt_of_the_same_name_find_nothing_of_each_other(
    rng: random.Random,
) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 90)
    names = {"model": "tiny", "weights": b"w", "tokenizer": b"t", "layout": b"l"}
    base, adapted = (
        namespace(**names, grain=GRAIN, numerics="served", adapter=adapter) for adapter in ("", "x")
    )
    scopes = [
        scope_of(base, b"k", "t"),
        scope_of(base, b"k", "t", salt="x"),
        scope_of(adapted, b"k", "t"),
    ]
    async with engine(tier) as own:
        for number, scope in enumerate(scopes):
            await answer(own, generation(f"new{number}", prompt, scope=scope, max_new=2))
            assert own.rows(f"new{number}")[0].cached_tokens == 0
        again = [
            generation(f"again{number}", prompt, scope=scope, max_new=2)
            for number, scope in enumerate(scopes)
        ]
        await answers(own, again)
        assert all(own.rows(each.key.request_id)[0].cached_tokens for each in again)
    async with engine(tier) as other:
        for number, scope in enumerate(scopes):
            tier.blocks = {key: kept for key, kept in tier.blocks.items() if key[0] != scope}
            await answer(other, generation(f"r{number}", prompt, scope=scope, max_new=2))
            assert other.rows(f"r{number}")[0].cached_tokens == 0


@pytest.mark.parametrize("stops_after", [0, 1, 5])
async def test_a_load_that_fails_shortens_the_hit(rng: random.Random, stops_after: int) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    async with engine(tier) as first:
        expected = await answer(first, generation("a", prompt))
    tier.stops_after = stops_after
    async with engine(tier) as second:
        assert await answer(second, generation("b", prompt)) == expected
        assert second.rows("b")[0].cached_memory == 0  # exact: without its anchor it is not used
    assert tier.loads == 1
    async with engine(tier, deterministic=False) as third:
        tier.stops_after = stops_after
        await answer(third, generation("b", prompt))
        row = third.rows("b")[0]
        assert row.cached_memory == row.cached_tokens <= stops_after * GRAIN


async def test_k1_a_hit_that_is_cut_goes_back_to_the_anchor_before_the_cut(
    rng: random.Random,
) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 90)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt))
        anchored = (90 - first.engine._ledger.limits.keep) // GRAIN
    longer = prompt + prompt_of(rng, 30)
    expected = await _cold(longer)
    tier.stops_after = anchored + 2  # one block and the anchor behind the prompt do not come
    async with engine(tier) as second:
        assert await answer(second, generation("b", longer)) == expected
        row = second.rows("b")[0]
        assert row.cached_memory == row.cached_tokens == anchored * GRAIN
    assert tier.loads == 2


async def test_an_anchor_is_brought_where_the_blocks_are_still_here(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 90)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt))
        for block in [block for _, block in tier.anchors]:  # other prompts needed the room
            first.engine._ledger._pools.anchors.forget(block)
        await answer(first, generation("b", prompt + prompt_of(rng, 60)))
        row = first.rows("b")[0]
        assert row.cached_tokens > 0 and row.cached_memory == 0  # its blocks were here
    assert tier.loads == 1


@pytest.mark.parametrize("stage", ["find", "load"])
async def test_who_leaves_while_it_waits_for_the_tier_leaves_no_page(
    rng: random.Random, stage: str
) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt))
    waits = tier.may_find if stage == "find" else tier.may_load
    waits.clear()
    async with engine(tier) as second:
        submitting = asyncio.create_task(second.engine.submit(generation("b", prompt), hold=False))
        await settle(lambda: tier.finds == 2 and tier.loads == (stage == "load"), within_s=5)
        submitting.cancel()
        waits.set()
        await asyncio.gather(submitting, return_exceptions=True)
        assert await answer(second, generation("c", prompt)) == await _cold(prompt)
        counts = second.engine.counts()
        assert counts.free_blocks == counts.num_blocks
        second.engine._ledger.check()


async def _cold(prompt: tuple[int, ...]) -> tuple[int, ...]:
    async with engine(None) as alone:
        return await answer(alone, generation("cold", prompt))


async def test_a_dropped_request_lets_its_load_end_in_order(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt))
    tier.may_load.clear()
    async with engine(tier) as second:
        asked = generation("b", prompt)
        submitting = asyncio.create_task(second.engine.submit(asked, hold=False))
        await settle(lambda: tier.loads == 1, within_s=5)
        assert await second.engine.drop(asked.key)
        tier.may_load.set()
        (refused,) = await asyncio.gather(submitting, return_exceptions=True)
        assert "given up" in str(refused)
        counts = second.engine.counts()
        assert counts.free_blocks == counts.num_blocks and counts.cached_blocks > 0


async def test_what_a_command_leaves_is_kept_before_the_next_one_gives_its_pages_away(
    rng: random.Random,
) -> None:
    tier, junk = MemoryTier(), b"\xa5"
    async with engine(tier, num_blocks=32, max_model_len=257) as it:
        asked = generation("a", prompt_of(rng, 60), max_new=190)
        await it.engine.submit(asked, hold=False)
        await it.until(lambda: len(it.tokens("a")) > 20)
        ledger, held = it.engine._ledger, threading.Event()

        def take_all() -> None:
            pages = ledger.reserve(Key("r", 1), 256)
            assert pages is not None and len(pages.blocks) == 32
            for page in pages.blocks:
                it.engine.block(page)[:] = junk * it.engine.layout.block_bytes
            held.set()

        it.engine._order(lambda: held.wait(0.2))  # so that both stand in line
        it.engine._order(lambda: ledger.drop(asked.key))
        it.engine._order(take_all)
        await settle(held.is_set)
        await it.engine.drop(Key("r", 1))
        anchored = [name for name in tier.anchors if name in tier.blocks]
        assert len(anchored) >= 3  # two of the prompt, one of the answer
        assert not any(kept.payload.startswith(junk * 64) for kept in tier.blocks.values())


async def test_who_leaves_twice_leaves_no_page(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt))
    tier.may_load.clear()
    async with engine(tier) as second:
        submitting = asyncio.create_task(second.engine.submit(generation("b", prompt), hold=False))
        await settle(lambda: tier.loads == 1, within_s=5)
        held = threading.Event()
        second.engine._order(held.wait)  # the engine's thread is in a step
        for _ in range(3):
            submitting.cancel()
            await asyncio.sleep(0)
        held.set()
        await asyncio.gather(submitting, return_exceptions=True)
        counts = second.engine.counts
        await settle(lambda: counts().free_blocks == counts().num_blocks)


async def test_a_key_that_comes_again_is_not_given_what_its_first_request_asked_for(
    rng: random.Random,
) -> None:
    tier, prompt, other = MemoryTier(), prompt_of(rng, 150), prompt_of(rng, 100)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt))
    tier.may_find.clear()
    async with engine(tier) as second:
        asked = generation("b", prompt)
        submitting = asyncio.create_task(second.engine.submit(asked, hold=False))
        await settle(lambda: tier.finds == 2)
        await second.engine.drop(asked.key)
        again = asyncio.create_task(second.engine.submit(generation("b", other), hold=False))
        await settle(lambda: tier.finds == 3)
        tier.may_find.set()
        await asyncio.gather(submitting, again, return_exceptions=True)
        await second.finished("b")
        assert second.tokens("b") == await _cold(other)
        assert tier.loads == 0


async def test_nothing_is_kept_of_who_wants_nothing_kept(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt, retention="none"))
        await answer(first, generation("b", prompt_of(rng, 100), scope=b""))
    assert not tier.blocks and not tier.anchors


async def test_a_tier_without_room_is_given_nothing(rng: random.Random) -> None:
    tier = MemoryTier(room=False)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt_of(rng, 150)))
    assert not tier.blocks


async def test_scopes_share_nothing_in_the_tier(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    async with engine(tier) as first:
        await answer(first, generation("a", prompt))
    async with engine(tier) as second:
        await answer(second, generation("b", prompt, scope=b"t" * 16))
        assert second.rows("b")[0].cached_tokens == 0
    assert tier.loads == 0


async def test_full_pools_take_nothing_in(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    async with engine(tier) as first:
        expected = await answer(first, generation("a", prompt))
    async with engine(tier, num_blocks=32, max_model_len=257) as small:
        blocker = generation(
            "hog",
            prompt_of(rng, 200),
            scope=b"",
        )
        await small.engine.submit(replace(blocker, max_new=40), hold=False)
        assert await answer(small, generation("b", prompt)) == expected
        await small.finished("hog")
