"""What the checkpoint says, and what the fleet says."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from diptych.core.blocks import chain, scope
from diptych.core.errors import Misconfigured, NotFound, Overloaded
from diptych.gateway import served
from diptych.gateway.chat.request import read_chat
from diptych.gateway.served import Identity
from diptych.router.client import Fleet
from diptych.text.markers import Marker

TINY = Path(__file__).parents[2] / "golden" / "tiny-text"
MASTER = b"master"


def checkpoint(tmp_path: Path, generation: str | None) -> Path:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(generation)
    return tmp_path


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, (1.0, 1.0)),
        ("{}", (1.0, 1.0)),
        ('{"temperature": 0.6, "top_p": 0.95}', (0.6, 0.95)),
    ],
)
def test_the_checkpoint_gives_the_defaults(
    tmp_path: Path, generation: str | None, expected: tuple[float, float]
) -> None:
    model = served.load(checkpoint(tmp_path, generation), "m", MASTER, lambda: None)
    request, _ = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    sampling = model.sampling(request)
    assert (sampling.temperature, sampling.top_p) == expected


@pytest.mark.parametrize("generation", ["{", "[]", '{"temperature": "hot"}'])
def test_a_damaged_generation_config_is_refused_by_its_path(
    tmp_path: Path, generation: str
) -> None:
    with pytest.raises(Misconfigured, match=r"generation_config\.json"):
        served.load(checkpoint(tmp_path, generation), "m", MASTER, lambda: None)


def test_the_identity_outlives_the_workers() -> None:
    fleet: Fleet | None = None
    model = served.load(TINY, "m", MASTER, lambda: fleet)
    with pytest.raises(Overloaded):
        model.identity()
    fleet = Fleet(namespace=b"1" * 16, max_model_len=9, block_tokens=8)
    assert model.identity() == Identity(b"1" * 16, 9, 8)
    fleet = Fleet()
    assert model.identity() == Identity(b"1" * 16, 9, 8)
    fleet = Fleet(namespace=b"2" * 16, max_model_len=9, block_tokens=8)
    assert model.identity().fingerprint != Identity(b"1" * 16, 9, 8).fingerprint


def test_another_name_is_not_found_and_not_repeated_at_length() -> None:
    model = served.load(TINY, "m", MASTER, lambda: None)
    model.check_model("m")
    with pytest.raises(NotFound) as caught:
        model.check_model("x" * 10_000)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("text", ["short", "long " * 2000])
async def test_long_texts_are_tokenised_elsewhere_with_the_same_result(text: str) -> None:
    model = served.load(TINY, "m", MASTER, lambda: None)
    identity = Identity(b"n" * 16, 100_000, 8)
    prompt = await model.encode([Marker.BOS, text], identity, "tenant", "user", "salt")
    assert prompt.token_ids == model.tokenizer.encode([Marker.BOS, text])
    assert prompt.scope == scope(b"n" * 16, MASTER, "tenant", "user", "salt")
    assert list(prompt.hashes) == chain(prompt.scope, prompt.token_ids, 8)
    names = [thread.name for thread in threading.enumerate()]
    assert any(name.startswith("tokenize") for name in names) == (len(text) > 4096)
    model.close()


async def test_prompts_of_one_request_are_encoded_as_if_alone() -> None:
    model = served.load(TINY, "m", MASTER, lambda: None)
    identity = Identity(b"n" * 16, 100_000, 8)
    prompts = [[Marker.BOS, "one"], [5, 6, 7] * 2000, ["three"]]
    found = await model.encode_all(prompts, identity, "tenant", "user", "salt")
    alone = [await model.encode(each, identity, "tenant", "user", "salt") for each in prompts]
    assert found == alone
    assert found[1].token_ids == (5, 6, 7) * 2000
    assert any(thread.name.startswith("tokenize") for thread in threading.enumerate())
    model.close()


async def test_the_loop_goes_on_while_a_long_text_is_tokenised() -> None:
    model = served.load(TINY, "m", MASTER, lambda: None)
    identity = Identity(b"n" * 16, 2**20, 128)
    encoding = asyncio.create_task(model.encode(["word " * 100_000], identity, "tenant", "", ""))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 20
    model.close()
