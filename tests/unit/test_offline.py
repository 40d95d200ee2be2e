"""The engine in-process against the golden data."""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diptych.core.errors import BadRequest, Misconfigured
from diptych.core.phases import Finish
from diptych.core.sampling import Sampling
from diptych.core.step import StepOutput
from diptych.offline import LLM

TINY = Path(__file__).parents[1] / "golden" / "tiny-text"
GOLDEN = load_file(TINY / "golden.safetensors")
PROMPTS = sorted({name.partition(".")[0] for name in GOLDEN})
CHUNKS = (1, 2, 7, 16, 64)
GREEDY = Sampling(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def models() -> dict[str, LLM]:
    names = ("exact", "exact64", "cache", "served")
    return {name: LLM(TINY, numerics=name, replay="off") for name in names}


def prompt_of(name: str) -> list[int]:
    ids: list[int] = GOLDEN[f"{name}.input_ids"].tolist()
    return ids


@pytest.mark.parametrize("name", PROMPTS)
def test_exact_logits_are_the_golden_ones(models: dict[str, LLM], name: str) -> None:
    expected = GOLDEN[f"{name}.logits"]
    for numerics in ("exact", "exact64"):
        found = models[numerics].logits(prompt_of(name))
        assert found.dtype == (torch.float32 if numerics == "exact" else torch.float64)
        torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_over_a_rounded_cache_are_the_golden_ones(models: dict[str, LLM], name: str) -> None:
    expected = GOLDEN[f"{name}.logits_kvq"]
    found = models["cache"].logits(prompt_of(name))[: len(expected)]
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)


def test_greedy_continuations_are_the_golden_ones_alone_and_in_one_batch(
    models: dict[str, LLM],
) -> None:
    expected = {name: tuple(GOLDEN[f"{name}.greedy"].tolist()) for name in PROMPTS}
    together = models["exact"].generate([prompt_of(name) for name in PROMPTS], GREEDY, 24)
    assert {n: c.token_ids for n, c in zip(PROMPTS, together, strict=True)} == expected
    for name in ("n1", "n33", "n150"):
        (one,) = models["exact"].generate([prompt_of(name)], GREEDY, 24)
        assert one.token_ids == expected[name]


@pytest.mark.parametrize(
    ("name", "numerics"),
    [
        *itertools.product(["n17", "mid_eos"], ["exact", "exact64", "cache", "served"]),
        ("n150", "exact64"),
        ("n150", "served"),
    ],
)
def test_chunks_give_the_logits_of_one_pass(
    models: dict[str, LLM], name: str, numerics: str
) -> None:
    prompt = prompt_of(name)
    whole = models[numerics].logits(prompt)
    for chunk in CHUNKS:
        found = models[numerics].logits(prompt, chunk=chunk)
        if numerics == "exact64":
            torch.testing.assert_close(found, whole, atol=1e-9, rtol=0)
        else:
            assert torch.equal(found, whole), f"chunk {chunk}"


@pytest.mark.parametrize("budget", CHUNKS)
def test_prompts_cut_into_chunks_sample_what_a_whole_prompt_samples(
    models: dict[str, LLM], budget: int
) -> None:
    prompts = [prompt_of(name) for name in ("n2", "n33", "n64")]
    how = [Sampling(seed=seed, ignore_eos=True) for seed in range(3)]
    expected = models["served"].generate(prompts, how, 9)
    sizes = {"max_num_seqs": min(budget, 3), "max_batch_tokens": budget, "max_model_len": 100}
    assert LLM(TINY, replay="off", **sizes).generate(prompts, how, 9) == expected


def test_every_row_of_the_served_model_is_near_the_exact_one(models: dict[str, LLM]) -> None:
    prompt = prompt_of("n64")
    served, exact = models["served"].logits(prompt), models["exact"].logits(prompt)
    assert torch.cosine_similarity(served, exact).min() > 0.7
    assert not torch.equal(served, exact)


def test_text_goes_in_and_comes_out(models: dict[str, LLM]) -> None:
    llm = models["served"]
    (made,) = llm.generate(["hello there"], Sampling(seed=1, ignore_eos=True), 8)
    assert made.prompt[0] == 0 and len(made.prompt) > 1
    assert made.text == llm.decode(made.token_ids) and made.finish is Finish.LENGTH


def test_a_stop_token_ends_one_prompt_of_a_batch(models: dict[str, LLM]) -> None:
    prompts = [prompt_of("n33"), prompt_of("n64")]
    first = GOLDEN["n33.greedy"].tolist()[2]
    how = Sampling(temperature=0, ignore_eos=True, stop_token_ids=(first,))
    stopped, other = models["exact"].generate(prompts, [how, GREEDY], 24)
    assert stopped.finish is Finish.STOP and stopped.token_ids[-1] == first
    assert other.token_ids == tuple(GOLDEN["n64.greedy"].tolist())


def test_steps_are_seen_as_they_come(models: dict[str, LLM]) -> None:
    seen: list[StepOutput] = []
    (made,) = models["served"].generate([prompt_of("n3")], GREEDY, 5, on_step=seen.append)
    tokens = [token for output in seen for row in output.rows for token in row.token_ids]
    assert tuple(tokens) == made.token_ids


def test_a_prompt_that_cannot_be_served_leaves_nothing_behind(models: dict[str, LLM]) -> None:
    llm = models["served"]
    with pytest.raises(BadRequest, match="token id 960"):
        llm.generate([[5, 6], [960]], GREEDY)
    with pytest.raises(BadRequest, match="token id -1"):
        llm.logits([-1])
    with pytest.raises(BadRequest, match="2 samplings for 1 prompts"):
        llm.generate([[5]], [GREEDY, GREEDY])
    assert llm.generate([[5, 6]], GREEDY, 2)[0].finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay": "on"}, "replay is 'on'; expected one of off, mask, compact"),
        ({"device": "cuda"}, "device is 'cuda'; expected 'cpu'"),
    ],
    ids=str,
)
def test_what_does_not_exist_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        LLM(TINY, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("async_stepping", [False, True])
def test_a_long_prompt_is_replayed_the_same_way_compact_or_masked(async_stepping: bool) -> None:
    prompts = [prompt_of(name) for name in ("n150", "n17", "n64")]
    how = Sampling(seed=4, ignore_eos=True)
    sizes = {"max_num_seqs": 3, "max_batch_tokens": 50, "async_stepping": async_stepping}
    compact = LLM(TINY, **sizes).generate(prompts, how, 16)
    assert LLM(TINY, replay="mask", **sizes).generate(prompts, how, 16) == compact
    off = LLM(TINY, replay="off", **sizes).generate(prompts, how, 16)
    assert off[1] == compact[1], "a prompt no longer than what is replayed is exact"


def test_logits_are_those_of_all_layers_on_all_rows_whatever_the_replay(
    models: dict[str, LLM],
) -> None:
    prompt = prompt_of("n150")
    assert torch.equal(LLM(TINY).logits(prompt), models["served"].logits(prompt))


def test_steps_that_overlap_say_what_steps_one_by_one_say() -> None:
    prompts = [prompt_of(name) for name in PROMPTS]
    how = [
        Sampling(seed=seed, stop_token_ids=tuple(range(100 + seed, 130 + seed)))
        for seed in range(len(prompts))
    ]
    sizes = {"max_num_seqs": 4, "max_batch_tokens": 40, "max_model_len": 200}
    one_by_one = LLM(TINY, **sizes).generate(prompts, how, 20)
    assert {made.finish for made in one_by_one} == {Finish.STOP, Finish.LENGTH}
    assert LLM(TINY, async_stepping=True, **sizes).generate(prompts, how, 20) == one_by_one
