"""The promise: a split run equals the hybrid run equals the engine in-process, token for token."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.core.sampling import Sampling
from diptych.offline import LLM
from diptych.supervisor.checkpoint import EMBEDDED_MODEL, embedded_folder
from diptych.testing.platform import MODEL, checkpoint_of, platform
from diptych.text import tokenizer
from diptych.text.chat import Chat, Message, Role, render

WORDS = [
    "the",
    "a",
    "of",
    "river",
    "stone",
    "seven",
    "light",
    "under",
    "who",
    "walks",
    "home",
    "letter",
    "glass",
    "and",
    "never",
    "twice",
]
NUM_REQUESTS = {EMBEDDED_MODEL: 12, MODEL: 24}


@dataclass(frozen=True)
class Case:
    content: str
    max_tokens: int
    seed: int
    temperature: float
    top_p: float

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "messages": [{"role": "user", "content": self.content}],
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "thinking": {"type": "disabled"},
            "return_token_ids": True,
            "ignore_eos": True,
        }


def make_cases(count: int) -> list[Case]:
    dice = random.Random("split equals hybrid")
    return [
        Case(
            content=" ".join(dice.choices(WORDS, k=dice.choice((1, 3, 20, 60, 150, 400)))),
            max_tokens=dice.choice((1, 2, 7, 24, 40)),
            seed=dice.randrange(2**63),
            temperature=dice.choice((0.0, 0.7, 1.0)),
            top_p=dice.choice((0.8, 1.0)),
        )
        for _ in range(count)
    ]


async def ask_all(base_url: str, model: str, cases: list[Case]) -> list[list[int]]:
    """All at once, as non-streamed requests."""
    async with httpx.AsyncClient(base_url=base_url, timeout=100) as client:

        async def ask(case: Case) -> list[int]:
            reply = await client.post("/v1/chat/completions", json=case.body(model))
            assert reply.status_code == 200, reply.text
            choice = reply.json()["choices"][0]
            assert choice["finish_reason"] == "length"
            ids: list[int] = choice["token_ids"]
            return ids

        return list(await asyncio.gather(*map(ask, cases)))


def ids_from(tmp_path: Path, model: str, cases: list[Case], *flags: str) -> list[list[int]]:
    tmp_path.mkdir(exist_ok=True)
    with platform(tmp_path, *flags, bundled=model == EMBEDDED_MODEL) as running:
        ids = asyncio.run(ask_all(running.base_url, model, cases))
        running.wait_for_baseline()
    return ids


def ids_in_process(checkpoint: Path, cases: list[Case]) -> list[list[int]]:
    llm = LLM(checkpoint)
    words = tokenizer.load(checkpoint)
    chats = [Chat((Message(Role.USER, case.content),), effort=None) for case in cases]
    outputs = []
    for case, chat in zip(cases, chats, strict=True):  # one by one: nothing beside it in a batch
        sampling = Sampling(
            temperature=case.temperature, top_p=case.top_p, seed=case.seed, ignore_eos=True
        )
        [output] = llm.generate([words.encode(render(chat))], sampling, case.max_tokens)
        outputs.append(list(output.token_ids))
    return outputs


@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", NUM_REQUESTS)
def test_split_equals_hybrid_equals_the_engine_in_process(tmp_path: Path, model: str) -> None:
    cases = make_cases(NUM_REQUESTS[model])
    split = ids_from(tmp_path / "split", model, cases, "--prefill", "2", "--decode", "2")
    hybrid = ids_from(tmp_path / "hybrid", model, cases, "--hybrid")
    is_bundled = model == EMBEDDED_MODEL
    checkpoint = embedded_folder() if is_bundled else checkpoint_of(tmp_path / "split")
    alone = ids_in_process(checkpoint, cases)
    assert [len(ids) for ids in alone] == [case.max_tokens for case in cases]
    assert split == alone
    assert hybrid == alone
