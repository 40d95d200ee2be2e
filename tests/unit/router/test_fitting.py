"""Coefficients from reports."""

import random
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Role
from diptych.router.costs import DEFAULTS, Costs
from diptych.router.estimates import (
    ACCURACY_LEAST,
    EXPECTED_NEW,
    GROUPS_LIMIT,
    TIER_BOUND,
    Estimates,
)
from diptych.router.fitting import BOUND, FITTED, Fit, Sample
from diptych.router.messages import Load

W, LIFE = WorkerId("w"), Incarnation(1)


def sample_of(costs: Costs, chance: random.Random, noise: float = 0.0) -> Sample:
    """What a worker with these costs would report."""
    steps = chance.randint(1, 8)
    has_prompts = chance.random() < 0.5
    tokens, rows = has_prompts * chance.randint(0, 4000) * steps, chance.randint(0, 64) * steps
    pairs, context = tokens * chance.randint(100, 20_000), rows * chance.randint(100, 50_000)
    busy_ms = (
        costs.step_ms * steps
        + costs.token_ms * tokens
        + costs.pair_ms * pairs
        + costs.row_ms * rows
        + costs.context_ms * context
    )
    busy_ms *= 1 + noise * chance.uniform(-1, 1)
    return Sample(busy_ms, steps, tokens, pairs, rows, context)


def test_the_coefficients_of_a_worker_are_found_within_a_few_dozen_reports() -> None:
    true = Costs(step_ms=3, token_ms=0.15, pair_ms=4e-7, row_ms=0.3, context_ms=5e-6)
    fit, chance = Fit(), random.Random("fit")
    for _ in range(60):
        fit.observe(sample_of(true, chance))
    assert abs(fit.costs.prompt_ms(5000, 8000) / true.prompt_ms(5000, 8000) - 1) < 0.02
    assert abs(fit.costs.gap_ms(32, 500_000) / true.gap_ms(32, 500_000) - 1) < 0.02


def test_noise_does_not_lead_astray_and_a_change_is_followed() -> None:
    fit, chance = Fit(), random.Random("noise")
    for token_ms in (0.03, 0.3):
        true = Costs(token_ms=token_ms)
        for _ in range(300):
            fit.observe(sample_of(true, chance, noise=0.2))
        assert abs(fit.costs.prompt_ms(8000, 8000) / true.prompt_ms(8000, 8000) - 1) < 0.15


def test_a_worker_that_only_decodes_leaves_the_costs_of_prompts_alone() -> None:
    fit, chance = Fit(), random.Random("decode only")
    true = Costs(step_ms=25, row_ms=0.4)
    for _ in range(2000):
        sample = sample_of(true, chance)
        rest_ms = true.token_ms * sample.tokens + true.pair_ms * sample.pairs
        busy_ms = sample.busy_ms - rest_ms
        fit.observe(Sample(busy_ms, sample.steps, 0, 0, sample.rows, sample.context))
    assert abs(fit.costs.gap_ms(16, 10_000) / true.gap_ms(16, 10_000) - 1) < 0.05
    assert fit.costs.token_ms == DEFAULTS.token_ms


numbers = st.integers(0, 10**9)
samples = st.builds(
    Sample, st.floats(1e-3, 1e7), st.integers(1, 10**6), numbers, numbers, numbers, numbers
)


@settings(deadline=None)  # a busy machine is no error
@given(st.lists(samples, max_size=40))
def test_whatever_is_reported_the_coefficients_stay_within_bounds(reports: list[Sample]) -> None:
    fit = Fit()
    for report in reports:
        fit.observe(report)
    for name in FITTED:
        ratio = getattr(fit.costs, name) / getattr(DEFAULTS, name)
        assert 0.999 / BOUND <= ratio <= 1.001 * BOUND
    untouched = {f.name for f in fields(Costs)} - set(FITTED)
    assert all(getattr(fit.costs, name) == getattr(DEFAULTS, name) for name in untouched)


def test_reports_without_steps_or_with_totals_that_fell_say_nothing() -> None:
    before = Load(steps_total=10, busy_us_total=1000, prompt_rows_total=50)
    assert Sample.between(before, before) is None
    assert Sample.between(before, Load(steps_total=1, busy_us_total=2000)) is None
    assert Sample.between(before, Load(steps_total=11, busy_us_total=2000)) is None  # rows fell
    after = Load(steps_total=12, busy_us_total=3000, prompt_rows_total=60)
    assert Sample.between(before, after) == Sample(2.0, 2, 10, 0, 0, 0)


def test_coefficients_at_the_edge_of_what_is_allowed_are_found() -> None:
    """A mock: a step and a position cost nothing, a token a thirtieth of what is shipped."""
    fit, chance = Fit(), random.Random("edge")
    for _ in range(200):
        steps, tokens = chance.randint(1, 12), 0
        for _ in range(steps):
            tokens += 512 * chance.randint(1, 40)
        busy_ms = 0.1 * steps + tokens / 1024
        fit.observe(Sample(busy_ms, steps, tokens, tokens * chance.randint(0, 10_000), 0, 0))
    assert abs(fit.costs.prompt_ms(10_000, 10_000) / (0.1 + 10_000 / 1024) - 1) < 0.05


def test_a_new_worker_starts_with_what_others_of_its_role_have_shown() -> None:
    estimates, chance = Estimates(), random.Random("role")
    true, load = Costs(token_ms=0.2), Load()
    for _ in range(50):
        estimates.reported(W, Role.PREFILL, LIFE, load)
        sample = sample_of(true, chance)
        load = Load(
            steps_total=load.steps_total + sample.steps,
            busy_us_total=load.busy_us_total + round(sample.busy_ms * 1000),
            prompt_rows_total=load.prompt_rows_total + sample.tokens,
            prompt_pairs_total=load.prompt_pairs_total + sample.pairs,
            decode_rows_total=load.decode_rows_total + sample.rows,
            decode_context_total=load.decode_context_total + sample.context,
        )
    other = WorkerId("other")
    assert abs(estimates.costs(other, Role.PREFILL).token_ms / 0.2 - 1) < 0.1
    assert estimates.costs(other, Role.DECODE) == DEFAULTS


def test_the_tier_is_as_fast_as_workers_loads_were() -> None:
    estimates, shipped = Estimates(), DEFAULTS.loading_ms(10_000, 5_000)
    load = Load()
    estimates.reported(W, Role.PREFILL, LIFE, load)

    def loads(count: int, tokens: int, took_ms: float) -> None:
        nonlocal load
        load = replace(
            load,
            loads_total=load.loads_total + count,
            brought_tokens_total=load.brought_tokens_total + tokens,
            load_us_total=load.load_us_total + round(1000 * took_ms),
        )
        estimates.reported(W, Role.PREFILL, LIFE, load)

    def tier_ms() -> float:
        return estimates.costs(WorkerId("other"), Role.PREFILL).loading_ms(10_000, 5_000)

    loads(0, 0, 0.0)
    assert tier_ms() == shipped
    for _ in range(100):
        loads(2, 20_000, 5 * (2 * DEFAULTS.fetch_ms + 20_000 * DEFAULTS.fetch_token_ms))
    assert tier_ms() == pytest.approx(5 * shipped, rel=0.01)
    assert estimates.costs(W, Role.PREFILL).fetching_ms(10_000) == DEFAULTS.fetching_ms(10_000)
    assert estimates.costs(W, Role.DECODE) == DEFAULTS
    for _ in range(100):
        loads(1, 0, 60_000.0)  # that brought nothing
    assert tier_ms() == pytest.approx(TIER_BOUND * shipped, rel=0.01)
    steps = {"busy_us_total": 100_000, "steps_total": 10, "prompt_rows_total": 1000}
    estimates.reported(W, Role.PREFILL, LIFE, replace(load, **steps))
    assert estimates.costs(W, Role.PREFILL).token_ms != DEFAULTS.token_ms
    assert tier_ms() == pytest.approx(TIER_BOUND * shipped, rel=0.01)  # whatever else is learned


def test_an_index_that_is_wrong_about_a_worker_loses_trust_and_can_win_it_back() -> None:
    estimates, hits, brought = Estimates(), 0, 0

    def serve(expected: int, real: int, by_tier: int = 0) -> None:
        nonlocal hits, brought
        hits, brought = hits + real + by_tier, brought + by_tier
        load = Load(hit_tokens_total=hits, brought_tokens_total=brought)
        estimates.expects_hit(W, expected)
        estimates.reported(W, Role.PREFILL, LIFE, load)

    estimates.reported(W, Role.PREFILL, LIFE, Load())
    for _ in range(ACCURACY_LEAST - 1):
        serve(1000, 100)
    assert estimates.accuracy(W) is None
    assert estimates.is_trusted(W)  # too little is known
    serve(1000, 100, by_tier=20_000)  # which says nothing of its pages
    assert not estimates.is_trusted(W)
    for _ in range(200):
        serve(1000, 990)
    assert estimates.is_trusted(W)
    estimates.forget(W)
    assert estimates.accuracy(W) is None


def test_outputs_are_expected_as_long_as_those_of_their_tenant_and_class() -> None:
    estimates = Estimates()
    assert estimates.expected_new("t", "") == EXPECTED_NEW
    for _ in range(200):
        estimates.ended("t", "", 900)
    assert 850 < estimates.expected_new("t", "") <= 900
    assert estimates.expected_new("u", "") == EXPECTED_NEW
    for number in range(GROUPS_LIMIT + 1):
        estimates.ended(f"tenant {number}", "", 5)
    assert estimates.expected_new("t", "") == EXPECTED_NEW  # forgotten, not kept for ever
