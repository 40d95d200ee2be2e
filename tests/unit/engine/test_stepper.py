"""Steps with and without overlap."""

from collections.abc import Callable

import pytest

from diptych.core.errors import Broken
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.sampling import Sampling
from diptych.core.step import Chunk, StepOutput
from diptych.engine.device import Device, DeviceThread
from diptych.engine.stepper import Stepper

from .conftest import FakeRunner, make_generation, make_ledger
from .lazy import LazyDevice

DEVICES: dict[str, Callable[[], Device | None]] = {"inline": lambda: None, "thread": DeviceThread}


def never(output: StepOutput) -> None:
    raise AssertionError(f"nothing was to be told: {output}")


def run(stepper: Stepper) -> list[StepOutput]:
    """All outputs until there is nothing to do."""
    told: list[StepOutput] = []
    while stepper.step(told.append):
        pass
    return told


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device | None:
    return DEVICES[request.param]()


def test_without_work_there_is_no_step(device: Device | None) -> None:
    assert not Stepper(make_ledger(), FakeRunner(), device).step(never)


def test_the_last_chunk_of_a_prompt_is_announced_before_it_is_computed() -> None:
    ledger, runner = make_ledger(max_batch_tokens=8), FakeRunner()
    stepper = Stepper(ledger, runner)
    generation = make_generation(prompt_len=20, max_new=2)
    ledger.submit(generation, hold=False)
    told: list[tuple[int, StepOutput]] = []
    for _ in range(3):
        assert stepper.step(lambda output: told.append((len(runner.plans), output)))
    key = generation.key
    assert told[:3] == [
        (1, StepOutput(0, chunks=(Chunk(key, 8, False),))),
        (2, StepOutput(1, chunks=(Chunk(key, 16, False),))),
        (2, StepOutput(2, chunks=(Chunk(key, 16, True),))),
    ]
    (_, last) = told[3]
    assert last.step == 2 and last.rows[0].token_ids == (7,) and not last.chunks


def test_when_every_step_breaks_all_rows_end_and_the_next_ones_run(device: Device | None) -> None:
    ledger, runner = make_ledger(), FakeRunner(breaks=True)
    stepper = Stepper(ledger, runner, device)
    ledger.submit(make_generation("a"), hold=False)
    ledger.submit(make_generation("b"), hold=True)
    rows = [row for output in run(stepper) for row in output.rows]
    assert [row.finish for row in rows] == [Finish.ERROR] * 2
    assert "RuntimeError: the fake runner broke" in rows[0].message
    ledger.check()
    assert ledger.counts().free_blocks == 64

    runner.breaks = False
    ledger.submit(make_generation("c"), hold=False)
    rows = [row for output in run(stepper) for row in output.rows]
    assert [row.token_ids for row in rows] == [(7,)] * 4


def test_who_breaks_every_step_is_found_and_ends_alone(device: Device | None) -> None:
    ledger, runner = make_ledger(), FakeRunner(poison="c")
    for name in "abcde":
        ledger.submit(make_generation(name, max_new=6), hold=name == "e")
    rows = [row for output in run(Stepper(ledger, runner, device)) for row in output.rows]
    said = {name: [r for r in rows if r.key.request_id == name] for name in "abcde"}
    assert [row.finish for row in said["c"]] == [Finish.ERROR]
    for name in "abd":
        assert [row.token_ids for row in said[name]] == [(7,)] * 6
        assert said[name][-1].finish is Finish.LENGTH
    assert [row.finish for row in said["e"]] == [None]
    assert sum(len(plan.pieces) > 1 for plan in runner.plans) > 2, "the innocent run together again"
    ledger.check()


def test_others_come_in_and_go_on_while_suspects_are_tried() -> None:
    ledger, runner = make_ledger(max_batch_tokens=8), FakeRunner(breaks_at=3)
    stepper = Stepper(ledger, runner)
    for name in "ab":  # prompts of several chunks, which are computed again one after the other
        ledger.submit(make_generation(name, prompt_len=20, max_new=4), hold=False)
    told: list[StepOutput] = []
    while not ledger.counts().failed_tokens_total:
        assert stepper.step(told.append)
    assert ledger.counts().running == 0 and ledger.counts().waiting == 2
    ledger.submit(make_generation("c", prompt_len=4, max_new=4), hold=False)
    started = len(runner.plans)
    while stepper.step(told.append):
        pass
    names = [{p.request.key.request_id for p in plan.pieces} for plan in runner.plans[started:]]
    assert names[:4] == [{"a"}, {"c"}, {"a"}, {"c"}]
    ends = [row.finish for output in told for row in output.rows if row.finish]
    assert ends == [Finish.LENGTH] * 3


def test_a_suspect_can_be_dropped(device: Device | None) -> None:
    ledger, runner = make_ledger(), FakeRunner(breaks_at=0)
    stepper = Stepper(ledger, runner, device)
    for name in "ab":
        ledger.submit(make_generation(name), hold=False)
    while not ledger.counts().failed_tokens_total:
        stepper.step(lambda output: None)
    assert ledger.drop(Key("a", 1))
    ledger.submit(make_generation("a"), hold=False)
    rows = [row for output in run(stepper) for row in output.rows]
    assert [row.finish for row in rows if row.finish] == [Finish.LENGTH] * 2
    ledger.check()
    assert ledger.counts().free_blocks == 64


def test_one_row_without_a_token_leaves_the_others_alone(device: Device | None) -> None:
    ledger = make_ledger()
    runner = FakeRunner(outcome=lambda name: Broken("not finite") if name == "b" else 7)
    for name in "abc":
        ledger.submit(make_generation(name), hold=False)
    rows = [row for output in run(Stepper(ledger, runner, device)) for row in output.rows]
    assert [row.message for row in rows[:3]] == ["", "not finite", ""]
    assert [row.key.request_id for row in rows[3:]] == ["a", "c"] * 3


def test_a_forward_is_launched_before_the_step_ahead_of_it_is_retired() -> None:
    ledger, runner, device = make_ledger(), FakeRunner(), LazyDevice()
    stepper = Stepper(ledger, runner, device)
    ledger.submit(make_generation("a", max_new=3), hold=False)
    told: list[StepOutput] = []
    assert stepper.step(told.append)
    assert not any(output.rows for output in told) and not runner.plans
    assert len(device.queue) == 2  # a forward, and its sample
    assert stepper.step(told.append)
    assert [row.token_ids for output in told for row in output.rows] == [(7,)]
    assert len(runner.plans) == 1 and len(device.queue) == 2
    assert [piece.unknown for piece in runner.plans[0].pieces] == [False]
    while stepper.step(told.append):
        assert len(device.queue) <= 2
    assert [piece.unknown for plan in runner.plans for piece in plan.pieces] == [False, True, True]


def test_a_row_behind_the_end_of_its_sequence_is_computed_and_forgotten() -> None:
    ledger, runner = make_ledger(), FakeRunner(outcome=lambda name: 1)  # the end of sequence
    generation = make_generation("a", max_new=9, sampling=Sampling(temperature=0))
    ledger.submit(generation, hold=False)
    stepper = Stepper(ledger, runner, LazyDevice())
    told: list[StepOutput] = []
    assert stepper.step(told.append) and stepper.step(told.append)
    assert [row.finish for output in told for row in output.rows] == [Finish.STOP]
    assert ledger.counts().running == 0 and ledger.counts().tokens_total == 1
    assert ledger.counts().free_blocks < 64, "the row behind the end still writes its pages"
    assert stepper.step(told.append)
    assert len(runner.plans) == 2 and runner.sampled == ["a"]
    assert ledger.counts().free_blocks == 64 and ledger.counts().tokens_total == 1
    assert [output.rows for output in told[2:]] == [()]
    assert not stepper.step(never)
    ledger.check()


def test_a_sequence_that_reaches_its_length_costs_no_row_behind_its_end() -> None:
    ledger, runner = make_ledger(), FakeRunner()
    ledger.submit(make_generation("a", max_new=5), hold=False)
    ledger.submit(make_generation("b", max_new=5), hold=True)
    run(Stepper(ledger, runner, LazyDevice()))
    assert [len(plan.pieces) for plan in runner.plans] == [2, 1, 1, 1, 1]


def test_a_dropped_sequence_says_nothing_and_its_pages_come_back_behind_its_last_step() -> None:
    ledger, runner = make_ledger(), FakeRunner()
    stepper = Stepper(ledger, runner, LazyDevice())
    ledger.submit(make_generation("a", max_new=9), hold=False)
    ledger.submit(make_generation("b", max_new=9), hold=False)
    assert stepper.step(lambda output: None)
    assert ledger.drop(Key("a", 1)) and stepper.is_flying
    told: list[StepOutput] = []
    stepper.settle(told.append)
    assert not stepper.is_flying
    assert [row.key.request_id for output in told for row in output.rows] == ["b"]
    ledger.drop(Key("b", 1))
    assert ledger.counts().free_blocks == 64


def test_a_step_that_breaks_spares_those_who_only_ride_in_the_next_one() -> None:
    ledger, runner = make_ledger(), FakeRunner()
    stepper = Stepper(ledger, runner, LazyDevice())
    told: list[StepOutput] = []
    ledger.submit(make_generation("a", max_new=3), hold=False)
    assert stepper.step(told.append)
    ledger.submit(make_generation("b", max_new=3), hold=False)
    runner.breaks_at = 0
    while stepper.step(told.append):
        pass
    rows = [row for output in told for row in output.rows]
    assert [row.finish for row in rows if row.key.request_id == "a"] == [Finish.ERROR]
    assert [row.token_ids for row in rows if row.key.request_id == "b"] == [(7,)] * 3
    ledger.check()


def test_a_step_that_cannot_begin_fails_like_one_that_breaks(device: Device | None) -> None:
    class NoBegin(FakeRunner):
        def begin(self, plan):  # type: ignore[no-untyped-def]
            raise ValueError("no such page")

    ledger = make_ledger()
    ledger.submit(make_generation("a"), hold=False)
    rows = [row for output in run(Stepper(ledger, NoBegin(), device)) for row in output.rows]
    assert [row.message for row in rows] == ["the step failed: ValueError: no such page"]
