"""Compiling beside the engine: trials in a process of their own, limits, cache, crashes."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from diptych.core.errors import BadRequest, Lost, Overloaded
from diptych.engine.grammar import Grammars, TrialLimits, replay
from diptych.text.constraints import Constraint, from_structured_outputs
from diptych.text.constraints.vocabulary import read_vocabulary

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = read_vocabulary(Path("tests/golden/tiny-text/tokenizer.json").read_bytes(), 960, [1])
DEADLINE_S = 2.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def grammars() -> AsyncIterator[Grammars]:
    """One worker's grammars, ready."""
    made = Grammars(VOCABULARY)
    await made.start()
    yield made
    await made.close()


def of(**kind: object) -> Constraint:
    found = from_structured_outputs(kind)
    assert found is not None
    return found


def small(number: int) -> Constraint:
    return of(json={"type": "object", "properties": {f"p{number}": {"type": "string"}}})


def nested_arrays(levels: int) -> Constraint:
    defs: dict[str, object] = {
        f"n{i}": {"type": "array", "items": {"$ref": f"#/$defs/n{i + 1}"}} for i in range(levels)
    }
    defs[f"n{levels}"] = {"type": "null"}
    return of(json={"$ref": "#/$defs/n0", "$defs": defs})


HOSTILE = {
    "wide": of(
        json={
            "type": "object",
            "properties": {f"prop_{i}": {"type": "string"} for i in range(5_000)},
            "additionalProperties": False,
        }
    ),
    "classes": of(regex=r"\p{L}{0,1000}\p{N}{0,1000}"),
    "ambiguous": of(regex="((a{0,50}b?){0,50}c?){0,50}"),
    "deep": nested_arrays(3_500),
}


async def test_each_grammar_that_is_made_or_refused_is_timed_once() -> None:
    took_s: list[float] = []
    grammars = Grammars(VOCABULARY, on_made=took_s.append)
    await grammars.start()
    try:
        for _ in range(2):
            await grammars.prepare(small(1))
            with pytest.raises(BadRequest):
                await grammars.prepare(HOSTILE["wide"])
        await grammars.prepare(small(2))
    finally:
        await grammars.close()
    assert len(took_s) == 3 and min(took_s) > 0


async def test_a_grammar_is_compiled_once_and_kept(grammars: Grammars) -> None:
    first = await grammars.prepare(small(1))
    assert await grammars.prepare(small(1)) is first
    together = await asyncio.gather(*(grammars.prepare(small(2)) for _ in range(5)))
    assert len({id(found) for found in together}) == 1
    matcher = grammars.matcher(first, after="</think>")
    assert replay(matcher, [VOCABULARY.token_id("</think>")])


async def test_what_another_worker_has_tried_needs_no_side_process() -> None:
    fresh = Grammars(VOCABULARY)
    first = await fresh.prepare(small(1), is_tried=True)
    assert await fresh.prepare(small(1)) is first
    assert fresh._trial._process is None
    await fresh.close()


async def test_a_refusal_is_the_callers_fault_and_remembered(grammars: Grammars) -> None:
    wrong = of(json={"not": {}})
    for _ in range(2):
        with pytest.raises(BadRequest) as caught:
            await grammars.prepare(wrong)
        assert caught.value.code == "invalid_schema"
        assert caught.value.param == "structured_outputs.json.not"


@pytest.mark.parametrize("name", HOSTILE)
async def test_t63_a_hostile_constraint_ends_soon_and_others_go_on(
    name: str, grammars: Grammars
) -> None:
    started = time.monotonic()

    async def attempt() -> tuple[str | None, float]:
        try:
            await grammars.prepare(HOSTILE[name])
        except BadRequest as error:
            return error.code, time.monotonic() - started
        return None, time.monotonic() - started

    hostile = asyncio.create_task(attempt())
    await asyncio.gather(
        *(grammars.prepare(small(100 + 10 * list(HOSTILE).index(name) + i)) for i in range(3))
    )
    others_s = time.monotonic() - started
    code, hostile_s = await hostile
    assert code == "invalid_schema"
    assert hostile_s < 2 * DEADLINE_S
    assert others_s < 2 * DEADLINE_S


async def test_more_than_may_wait_is_overload(grammars: Grammars) -> None:
    few = Grammars(VOCABULARY, limits=TrialLimits(waiting=2))
    found = await asyncio.gather(*(few.prepare(small(i)) for i in range(5)), return_exceptions=True)
    await few.close()
    assert [type(f) for f in found].count(Overloaded) == 3


async def test_the_least_used_grammars_make_room() -> None:
    one = Grammars(VOCABULARY, max_bytes=1)
    try:
        first = await one.prepare(small(1))
        await one.prepare(small(2))
        assert await one.prepare(small(1)) is not first
        assert one.size_bytes == first.size_bytes
    finally:
        await one.close()


async def test_a_dead_side_process_is_started_again(grammars: Grammars) -> None:
    pid = grammars.trial_pid
    assert pid is not None
    slow = asyncio.create_task(grammars.prepare(of(regex=r"\p{L}{0,900}\p{N}{0,900}")))
    await asyncio.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Lost):
        await slow
    await grammars.prepare(small(77))


async def test_memory_is_limited() -> None:
    tight = Grammars(VOCABULARY, limits=TrialLimits(memory_bytes=8 << 20))
    try:
        many = of(json={"enum": [f"item-{i}" for i in range(6_000)]})
        with pytest.raises(BadRequest) as caught:
            await tight.prepare(many)
        assert caught.value.code == "invalid_schema"
        await tight.prepare(small(1))
    finally:
        await tight.close()


async def test_t64_what_overflows_a_librarys_stack_costs_one_request() -> None:
    second = Grammars(VOCABULARY, backend="llguidance")
    try:
        with pytest.raises(BadRequest, match="nested too deep"):
            await second.prepare(HOSTILE["deep"])
        await second.prepare(small(1))
    finally:
        await second.close()
