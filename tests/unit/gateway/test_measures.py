"""What outputs leave in the metrics."""

import re
from typing import Any

import pytest

from diptych.core.errors import Lost
from diptych.core.phases import Phase
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.journey import Journey
from diptych.gateway.measures import Measures, OutputClock
from diptych.telemetry.metrics import Metrics
from diptych.text.markers import Marker

TEXT = ("one two three four five six", Marker.EOS)


def shown(site: Any) -> dict[str, float]:
    """Samples of the site, without the role that all have."""
    text: str = site.pipeline.measures.metrics.text().decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("llm_"))
    return {
        re.sub(r',?role="gateway",?', "", name).replace("{}", ""): float(value)
        for name, _, value in lines
    }


@pytest.mark.parametrize("is_hybrid", [False, True])
async def test_an_answer_is_counted_by_phase_and_token(serve: Any, is_hybrid: bool) -> None:
    site = serve(*TEXT, is_hybrid=is_hybrid)
    usage = (await site.ask()).json()["usage"]
    samples = shown(site)
    assert samples['llm_tokens_total{type="input"}'] == usage["prompt_tokens"]
    assert samples['llm_tokens_total{type="output"}'] == usage["completion_tokens"]
    assert samples['llm_request_seconds_count{result="ok"}'] == 1
    assert samples["llm_ttft_seconds_count"] == 1
    assert samples["llm_inter_token_seconds_count"] == usage["completion_tokens"] - 1
    phases = {name for name in samples if name.startswith("llm_phase_seconds_count")}
    split = {"route", "prefill", "handoff", "decode"}
    expected = {"route", "decode"} if is_hybrid else split
    assert phases == {f'llm_phase_seconds_count{{phase="{phase}"}}' for phase in expected}


async def test_an_output_that_needed_another_worker_is_counted(serve: Any) -> None:
    site = serve(*TEXT)
    site.hops.failures["token 3"] = [Lost("gone")]
    await site.ask()
    assert shown(site)['llm_migrations_total{result="ok"}'] == 1


async def test_a_refusal_is_counted_by_status_and_code(serve: Any) -> None:
    site = serve(*TEXT)
    reply = await site.ask(max_tokens=-1)
    code = reply.json()["error"]["code"]
    samples = shown(site)
    assert samples[f'llm_rejects_total{{code="400",reason="{code}"}}'] == 1
    assert not any(name.startswith("llm_request_seconds_count") for name in samples)


@pytest.mark.parametrize(
    ("held", "stage"),
    [
        ("queue", "route"), ("first", "prefill"), ("decode_at", "handoff"), ("start", "handoff"),
        ("token 3", "decode"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_counted_by_stage(
    serve: Any, visit: Any, held: str, stage: str, stream: bool
) -> None:
    site = serve(*TEXT)
    site.hops.holds.add(held)
    client = visit(site, stream=stream)
    await site.hops.reached(held)
    client.leave()
    await client.over()
    samples = shown(site)
    assert samples['llm_request_seconds_count{result="cancelled"}'] == 1
    aborts = {name: n for name, n in samples.items() if name.startswith("llm_aborts_total")}
    assert aborts == {f'llm_aborts_total{{stage="{stage}"}}': 1}


async def test_an_output_that_has_all_it_needs_is_no_abort(serve: Any) -> None:
    site = serve(*TEXT)
    await site.ask(stop=["three"])
    assert not any(name.startswith("llm_aborts_total") for name in shown(site))


def test_a_gap_that_a_reader_notices_is_a_stall() -> None:
    now_s = 0.0
    measures = Measures(Metrics("gateway"))
    clock = OutputClock(measures, lambda: now_s)
    for now_s in (0.5, 0.6, 3.6):  # noqa: B007 - the clock reads it
        clock.emitted(1)
    text = measures.metrics.text().decode()
    assert 'llm_stream_stall_seconds_sum{role="gateway"} 3.0' in text
    assert 'llm_stream_stall_seconds_count{role="gateway"} 1.0' in text
    assert 'llm_ttft_seconds_sum{role="gateway"} 0.5' in text


def test_phases_of_later_attempts_are_not_mixed_with_first_ones() -> None:
    now_s = 0.0
    measures = Measures(Metrics("gateway"))
    clock = OutputClock(measures, lambda: now_s)
    journey = Journey(4, Deadlines())
    journey.attempt, journey.phase = 2, Phase.PREFILL
    clock.saw(journey)
    assert "llm_phase_seconds_count" not in measures.metrics.text().decode()
