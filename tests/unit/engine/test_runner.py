"""The tiny model through the whole engine: what a request gets does not depend on its company."""

import asyncio
import random
from dataclasses import replace

import pytest

from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Logprob
from diptych.engine.port import Pages

from .conftest import Watched, make_generation, tiny_engine


def random_generations(rng: random.Random, count: int) -> list[Generation]:
    """Mixed lengths, greedy and seeded."""
    return [
        make_generation(
            f"g{i}",
            prompt=tuple(rng.randrange(3, 900) for _ in range(rng.choice([1, 2, 9, 40, 70]))),
            max_new=rng.randrange(1, 16),
            sampling=Sampling(
                temperature=rng.choice([0.0, 0.8, 1.0]),
                top_p=rng.choice([1.0, 0.9]),
                top_k=rng.choice([0, 40]),
                seed=rng.getrandbits(64),
                ignore_eos=True,
            ),
        )
        for i in range(count)
    ]


async def alone(generations: list[Generation], numerics: str) -> dict[str, tuple[int, ...]]:
    """The tokens of each generation, one after the other, each prompt in one piece."""
    async with tiny_engine(numerics, max_model_len=256) as it:
        for generation in generations:
            await it.engine.submit(generation, hold=False)
            await it.finished(generation.key.request_id)
        return {g.key.request_id: it.tokens(g.key.request_id) for g in generations}


@pytest.mark.parametrize("numerics", ["exact", "cache", "served"])
async def test_a_batch_of_mixed_lengths_gives_what_each_gets_alone(
    numerics: str, rng: random.Random
) -> None:
    generations = random_generations(rng, 12)
    expected = await alone(generations, numerics)
    sizes = {"max_model_len": 256, "max_num_seqs": 7, "max_batch_tokens": 37, "num_blocks": 60}
    async with tiny_engine(numerics, **sizes) as it:
        for generation in generations:
            await it.engine.submit(generation, hold=False)
        await it.finished(*expected)
        assert {name: it.tokens(name) for name in expected} == expected


async def move(source: Watched, target: Watched, generation: Generation) -> Generation:
    """Hand a held sequence over: its pages byte for byte, then its first token."""
    key = generation.key
    pages = await source.engine.held(key)
    assert pages is not None
    reserved = await target.engine.reserve(key, generation.capacity)
    assert reserved is not None
    copy_pages(source, pages, target, reserved)
    await source.engine.drop(key)
    first = source.tokens(key.request_id)
    return replace(generation, forced=generation.forced + first)


def copy_pages(source: Watched, pages: Pages, target: Watched, reserved: Pages) -> None:
    for mine, theirs in zip(pages.blocks, reserved.blocks, strict=False):
        target.engine.block(theirs)[:] = source.engine.block(mine)
    target.engine.slot(reserved.slot)[:] = source.engine.slot(pages.slot)


async def test_a_split_run_gives_what_one_engine_gives(rng: random.Random) -> None:
    generations = random_generations(rng, 10)
    expected = await alone(generations, "served")
    prefill = tiny_engine("served", max_model_len=256, max_batch_tokens=64)
    decode = tiny_engine("served", max_model_len=256, max_num_seqs=12, max_batch_tokens=32)
    async with prefill as source, decode as target:
        assert source.engine.namespace == target.engine.namespace

        async def hand_over(generation: Generation) -> tuple[int, ...]:
            name = generation.key.request_id
            await source.engine.submit(generation, hold=True)
            await source.until(lambda: source.rows(name))
            if source.rows(name)[-1].finish is None:
                await target.engine.adopt(await move(source, target, generation))
                await target.finished(name)
            return source.tokens(name) + target.tokens(name)

        found = await asyncio.gather(*map(hand_over, generations))
    assert dict(zip(expected, found, strict=True)) == expected


async def test_forced_tokens_resume_a_sequence_where_another_engine_left_it() -> None:
    how = Sampling(seed=5, ignore_eos=True)
    whole = make_generation("a", prompt_len=20, max_new=12, sampling=how)
    tokens = (await alone([whole], "served"))["a"]
    rest = make_generation("b", prompt_len=20, max_new=12, sampling=how, forced=tokens[:7])
    assert (await alone([rest], "served"))["b"] == tokens[7:]


async def test_log_probabilities_are_the_same_alone_in_a_batch_and_behind_a_hand_off(
    rng: random.Random,
) -> None:
    generations = [
        replace(g, sampling=replace(g.sampling, logprobs=i % 4, frequency_penalty=0.5))
        for i, g in enumerate(random_generations(rng, 8))
    ]

    def told(it: Watched, name: str) -> list[Logprob]:
        for row in it.rows(name):
            assert len(row.logprobs) == len(row.token_ids)
        return [logprob for row in it.rows(name) for logprob in row.logprobs]

    expected = {}
    async with tiny_engine("served", max_model_len=256) as it:
        for generation in generations:
            name = generation.key.request_id
            await it.engine.submit(generation, hold=False)
            await it.finished(name)
            expected[name] = told(it, name)
            assert all(
                len(logprob.top) == generation.sampling.logprobs for logprob in expected[name]
            )
    async with tiny_engine("served", max_model_len=256, max_batch_tokens=64) as source:
        for generation in generations:
            await source.engine.submit(generation, hold=True)
        async with tiny_engine("served", max_model_len=256) as target:
            for generation in generations:
                name = generation.key.request_id
                await source.until(lambda name=name: source.rows(name))
                if source.rows(name)[-1].finish is None:
                    await target.engine.adopt(await move(source, target, generation))
                    await target.finished(name)
            found = {name: told(source, name) + told(target, name) for name in expected}
    assert found == expected
