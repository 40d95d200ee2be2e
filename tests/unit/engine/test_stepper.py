from diptych.core.errors import Broken
from diptych.core.phases import Finish
from diptych.core.step import Chunk, StepOutput
from diptych.engine.stepper import Stepper

from .conftest import FakeRunner, make_generation, make_ledger


def never(output: StepOutput) -> None:
    raise AssertionError(f"nothing was to be announced: {output}")


def test_without_work_there_is_no_step() -> None:
    assert Stepper(make_ledger(), FakeRunner()).step(never) is None


def test_the_last_chunk_of_a_prompt_is_announced_before_it_is_computed() -> None:
    ledger, runner = make_ledger(max_batch_tokens=8), FakeRunner()
    stepper = Stepper(ledger, runner)
    generation = make_generation(prompt_len=20, max_new=2)
    ledger.submit(generation, hold=False)
    first, second = stepper.step(never), stepper.step(never)
    assert first is not None and first.chunks == (Chunk(generation.key, 8, False),)
    assert second is not None and second.chunks == (Chunk(generation.key, 16, False),)

    announced: list[tuple[int, StepOutput]] = []
    last = stepper.step(lambda output: announced.append((len(runner.plans), output)))
    assert announced == [(2, StepOutput(2, chunks=(Chunk(generation.key, 16, True),)))]
    assert last is not None and last.step == 2 and last.rows[0].token_ids == (7,)
    assert not last.chunks


def test_a_step_that_breaks_ends_its_rows_and_the_next_one_runs() -> None:
    ledger, runner = make_ledger(), FakeRunner(breaks=True)
    stepper = Stepper(ledger, runner)
    ledger.submit(make_generation("a"), hold=False)
    ledger.submit(make_generation("b"), hold=True)
    output = stepper.step(lambda output: None)
    assert output is not None
    assert [row.finish for row in output.rows] == [Finish.ERROR] * 2
    assert "RuntimeError: the fake runner broke" in output.rows[0].message
    ledger.check()
    assert ledger.counts().free_blocks == 64

    runner.breaks = False
    ledger.submit(make_generation("c"), hold=False)
    output = stepper.step(lambda output: None)
    assert output is not None and output.rows[0].token_ids == (7,)


def test_one_row_without_a_token_leaves_the_others_alone() -> None:
    ledger = make_ledger()
    runner = FakeRunner(outcome=lambda name: Broken("not finite") if name == "b" else 7)
    for name in "abc":
        ledger.submit(make_generation(name), hold=False)
    output = Stepper(ledger, runner).step(lambda output: None)
    assert output is not None
    assert [row.message for row in output.rows] == ["", "not finite", ""]
