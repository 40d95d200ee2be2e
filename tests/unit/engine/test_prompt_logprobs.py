"""Log-probabilities of prompts: those of all rows, however and beside whom they are computed."""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diptych.core.errors import BadRequest, Broken
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Logprob, Row, StepOutput
from diptych.engine.anchors import AnchorPool
from diptych.engine.block_pool import BlockPool
from diptych.engine.ledger import Ledger
from diptych.engine.sampler import Sampler
from diptych.engine.scheduler import Limits
from diptych.engine.slots import SlotPool
from diptych.offline import LLM

from .conftest import BOUNDS, TINY, make_generation, make_request, tiny_engine

GREEDY = Sampling(temperature=0, ignore_eos=True)
ASKING = replace(GREEDY, prompt_logprobs=3)
SIZES: dict[str, Any] = {"max_model_len": 256, "block_tokens": 8, "max_num_seqs": 6}

model = functools.cache(lambda numerics: LLM(TINY, numerics=numerics, **SIZES))


def random_prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, 900) for _ in range(length))


def expect(found: Sequence[Logprob], prompt: Sequence[int], numerics: str) -> None:
    """They are those of the rows of a model that leaves nothing out."""
    assert len(found) == len(prompt) - 1
    z = model(numerics).logits(prompt).numpy().astype(np.float64)
    for row, token, logprob in zip(z, prompt[1:], found, strict=False):
        total = math.log(np.exp(row - row.max()).sum()) + row.max()
        assert logprob.value == pytest.approx(row[token] - total, abs=1e-9)
        assert len(logprob.top) == 3
        for best, value in logprob.top:
            assert value == pytest.approx(row[best] - total, abs=1e-9)
            assert (best == token) == (logprob.top.index((best, value)) + 1 == logprob.rank)


def told(
    llm: LLM, prompts: Sequence[tuple[int, ...]], how: Sequence[Sampling]
) -> tuple[list[tuple[Logprob, ...]], list[tuple[int, ...]]]:
    """What a batch hears about each prompt, with its first token only, and the outputs."""
    rows: dict[str, list[Row]] = {}

    def hear(output: StepOutput) -> None:
        for row in output.rows:
            rows.setdefault(row.key.request_id.rsplit("-", 1)[1], []).append(row)

    completions = llm.generate(prompts, how, 5, hear)
    first = [rows[str(i)][0].prompt_logprobs for i in range(len(prompts))]
    assert not any(row.prompt_logprobs for those in rows.values() for row in those[1:])
    return first, [completion.token_ids for completion in completions]


@pytest.mark.parametrize("numerics", ["exact", "served"])
def test_they_are_those_of_all_rows_in_chunks_alone_and_beside_others(
    numerics: str, rng: random.Random
) -> None:
    prompts = [random_prompt(rng, length) for length in (150, 1, 2, 33, 90, 70)]
    how = [ASKING if i != 4 else GREEDY for i in range(len(prompts))]
    alone = [told(model(numerics), [p], [h]) for p, h in zip(prompts, how, strict=True)]
    expected = [first for ((first,), _) in alone], [tokens for (_, (tokens,)) in alone]
    for found, prompt, sampling in zip(expected[0], prompts, how, strict=True):
        if sampling is ASKING:
            expect(found, prompt, numerics)
        else:
            assert found == ()
    for choices in (
        {"max_batch_tokens": 37},
        {"max_batch_tokens": 7, "async_stepping": True},
        {"replay": "mask"},
    ):
        assert told(LLM(TINY, numerics=numerics, **SIZES, **choices), prompts, how) == expected


def test_the_outputs_of_those_who_do_not_ask_stay_as_they_are(rng: random.Random) -> None:
    prompts = [random_prompt(rng, 120) for _ in range(3)]
    _, plain = told(model("served"), prompts, [GREEDY] * 3)
    found, beside = told(model("served"), prompts, [GREEDY, ASKING, GREEDY])
    assert (beside[0], beside[2]) == (plain[0], plain[2])
    assert [len(each) for each in found] == [0, 119, 0]


@pytest.mark.parametrize("async_stepping", [False, True])
async def test_a_prompt_that_is_computed_again_tells_them_once(
    async_stepping: bool, rng: random.Random
) -> None:
    prompt = random_prompt(rng, 90)
    older = make_generation("a", prompt_len=7, max_new=60)
    asking = make_generation("b", prompt=prompt, max_new=3, sampling=ASKING)
    sizes = {"max_model_len": 128, "num_blocks": 16, "max_num_seqs": 3, "max_batch_tokens": 3}
    more = {"swap_bytes": 0, "async_stepping": async_stepping}
    async with tiny_engine("served", **sizes, **more) as it:
        await it.engine.submit(older, hold=False)
        await it.engine.submit(asking, hold=False)
        await it.finished("a", "b")
        assert it.engine.counts().preemptions_total == 1
        chunks = [c for out in it.outputs for c in out.chunks if c.key == asking.key]
        progress = [chunk.tokens for chunk in chunks if not chunk.last_chunk_started]
        assert sorted(progress) != progress, "it was not preempted in the middle of its prompt"
        first, *rest = it.rows("b")
        expect(first.prompt_logprobs, prompt, "served")
        assert not any(row.prompt_logprobs for row in rest)


async def test_what_others_have_cached_is_neither_used_nor_added_to(rng: random.Random) -> None:
    prompt = random_prompt(rng, 120)
    async with tiny_engine("served", max_model_len=256) as it:

        async def cached(name: str, sampling: Sampling) -> int:
            how = {"prompt": prompt, "sampling": sampling, "scope": b"s" * 16}
            await it.engine.submit(make_generation(name, **how), hold=False)
            await it.finished(name)
            return it.rows(name)[0].cached_tokens

        assert await cached("asks first", ASKING) == 0
        assert await cached("fills the cache", GREEDY) == 0
        assert await cached("uses it", GREEDY) > 0
        assert await cached("asks", ASKING) == 0
        expect(it.rows("asks")[0].prompt_logprobs, prompt, "served")


def plan_of(generation: Generation) -> tuple[int, list[Logprob] | None]:
    """Floor of a request's first piece, and what is noted for it."""
    limits = Limits(grain=8, max_batch_tokens=64, window=4, replay=True)
    ledger = Ledger(BOUNDS, limits, BlockPool(64), SlotPool(8), AnchorPool(4))
    ledger.submit(generation, hold=False)
    (piece,) = ledger.next_plan().pieces
    return piece.floor, piece.request.prompt_logprobs


def test_none_of_its_rows_is_left_out_and_nobody_hears_them_twice() -> None:
    generation = make_generation(prompt_len=40)
    assert plan_of(generation) == (24, None)
    asking = replace(generation, sampling=ASKING)
    assert plan_of(asking) == (0, [])
    assert plan_of(replace(asking, forced=(7,))) == (0, None)  # they went with that token


def test_a_row_of_the_prompt_that_is_not_finite_ends_the_request() -> None:
    sampler = Sampler(eos_token_id=1)
    request = make_request(make_generation(prompt=(3, 4, 5), sampling=ASKING))
    request.prompt_logprobs = []
    sampler.score(np.array([[1.0, 2, 3, 4, 5, 6]]), request)
    assert sampler.outcome(np.arange(6.0), request) == 5
    sampler.score(np.array([[1.0, 2, math.inf, 4, 5, 6]]), request)
    assert isinstance(sampler.outcome(np.arange(6.0), request), Broken)


@pytest.mark.parametrize("top", [-1, 21])
def test_more_alternatives_than_there_may_be_are_refused(top: int) -> None:
    with pytest.raises(BadRequest, match=f"prompt_logprobs is {top}; expected 0 to 20") as caught:
        Sampling(prompt_logprobs=top).check()
    assert caught.value.param == "prompt_logprobs"
