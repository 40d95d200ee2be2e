"""The tiny model goes on elsewhere from a copy of its slot, as if nothing had happened."""

import random
from dataclasses import replace

import pytest

from diptych.core.request import Generation
from diptych.testing.tier import MemoryTier

from .test_tiering import GRAIN, answer, engine, generation, prompt_of

EVERY = 2 * GRAIN
MAX_NEW = 42


def asked(name: str, prompt: tuple[int, ...], forced: tuple[int, ...] = ()) -> Generation:
    return generation(name, prompt, max_new=MAX_NEW, forced=forced)


async def undisturbed(asked: Generation) -> tuple[int, ...]:
    async with engine(None) as alone:
        return await answer(alone, asked)


async def left_behind(prompt: tuple[int, ...], tier: MemoryTier, **options: object) -> None:
    """A worker computes all of an answer, and is gone."""
    async with engine(tier, snapshot_tokens=EVERY, **options) as first:
        await answer(first, asked("first", prompt))


def last_spot(prompt: tuple[int, ...], forced: int) -> int:
    """The furthest position of a copy, if there is one."""
    last = (len(prompt) + forced - 1) // EVERY * EVERY
    return last if last > len(prompt) else 0


@pytest.mark.parametrize(("length", "overlapping"), [(5, False), (150, True)])
async def test_another_engine_goes_on_from_the_last_copy_with_the_same_tokens(
    rng: random.Random, length: int, overlapping: bool
) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, length)
    expected = await undisturbed(asked("alone", prompt))
    await left_behind(prompt, tier, async_stepping=overlapping)
    assert len(tier.slots) == (length + MAX_NEW - 2) // EVERY - length // EVERY
    for num_forced in (rng.randrange(1, EVERY), rng.randrange(EVERY, MAX_NEW - 1), MAX_NEW - 1):
        forced = expected[:num_forced]
        async with engine(tier, snapshot_tokens=EVERY, async_stepping=overlapping) as second:
            assert await answer(second, asked("b", prompt, forced)) == expected[num_forced:]
            spot = last_spot(prompt, num_forced)
            if spot:
                assert second.rows("b")[0].cached_tokens == spot
            counts = second.engine.counts()
            assert counts.free_blocks == counts.num_blocks
            assert counts.hit_tokens_total <= counts.query_tokens_total
            assert (counts.resumed_total, counts.snapshots_total) == (1, bool(spot))


async def test_a_copy_that_was_not_kept_in_time_costs_one_interval_more(
    rng: random.Random,
) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 12)
    expected = await undisturbed(asked("alone", prompt))
    await left_behind(prompt, tier)
    spot = last_spot(prompt, 40)
    tier.slots.popitem()
    async with engine(tier, snapshot_tokens=EVERY) as second:
        assert await answer(second, asked("b", prompt, expected[:40])) == expected[40:]
        assert second.rows("b")[0].cached_tokens == spot - EVERY


async def test_of_copies_with_a_gap_before_them_none_is_used(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 12)
    expected = await undisturbed(asked("alone", prompt))
    await left_behind(prompt, tier)
    del tier.blocks[list(tier.blocks)[2]]
    async with engine(tier, snapshot_tokens=EVERY) as second:
        assert await answer(second, asked("b", prompt, expected[:40])) == expected[40:]
        assert second.rows("b")[0].cached_tokens == 2 * GRAIN


async def test_blocks_that_stop_coming_leave_a_computation_from_the_start(
    rng: random.Random,
) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 12)
    expected = await undisturbed(asked("alone", prompt))
    await left_behind(prompt, tier)
    tier.stops_after = 3
    async with engine(tier, snapshot_tokens=EVERY) as second:
        assert await answer(second, asked("b", prompt, expected[:40])) == expected[40:]
        assert second.rows("b")[0].cached_tokens == 0


async def test_the_same_text_with_a_longer_prompt_has_another_slot(rng: random.Random) -> None:
    """Its decoder layers begin elsewhere, so its windows differ."""
    tier, prompt = MemoryTier(), prompt_of(rng, 150)
    output = await undisturbed(asked("alone", prompt))
    await left_behind(prompt, tier)
    longer, forced = prompt + output[:20], output[20:40]
    expected = await undisturbed(asked("longer", longer, forced))
    async with engine(tier, snapshot_tokens=EVERY) as second:
        assert await answer(second, asked("b", longer, forced)) == expected
        assert second.rows("b")[0].cached_tokens < len(longer)


async def test_a_request_that_keeps_nothing_leaves_no_copy(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 12)
    async with engine(tier, snapshot_tokens=EVERY) as first:
        await answer(first, replace(asked("a", prompt), retention="none"))
    assert not tier.slots and not tier.blocks


async def test_without_snapshots_the_whole_output_is_computed_again(rng: random.Random) -> None:
    tier, prompt = MemoryTier(), prompt_of(rng, 12)
    expected = await undisturbed(asked("alone", prompt))
    async with engine(tier, snapshot_tokens=0) as first:
        await answer(first, asked("a", prompt))
    assert not tier.slots
    async with engine(tier, snapshot_tokens=0) as second:
        assert await answer(second, asked("b", prompt, expected[:40])) == expected[40:]
        assert second.rows("b")[0].cached_tokens < len(prompt)
