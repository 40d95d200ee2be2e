"""Pools hardly larger than one request, with the real engine: requests wait, and none for ever."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from diptych.core.ids import Key
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import StepOutput
from diptych.decode_service.puller import Transfer
from diptych.engine.build import build_engine
from diptych.engine.loop import Engine
from diptych.engine.options import Options
from diptych.testing.clock import settle
from diptych.testing.cluster import cluster

TINY = Path(__file__).parents[1] / "golden" / "tiny-text"
GRAIN = 8
LONGEST = 160  # tokens of a request: 20 blocks
TIGHT = Options(
    block_tokens=GRAIN, max_model_len=LONGEST, num_blocks=21, max_num_seqs=4, max_batch_tokens=64
)
NUM_REQUESTS = 8


def asked(number: int) -> Generation:
    """Every fourth one needs all but one of the blocks."""
    draw = random.Random(number)
    max_new = draw.randrange(6, 16)
    length = LONGEST - max_new if number % 4 == 0 else draw.randrange(20, 80)
    prompt = tuple(draw.randrange(3, 300) for _ in range(length))
    sampling = Sampling(seed=number, ignore_eos=True)
    return Generation(Key(f"r{number}", 1), prompt, sampling, max_new, scope=b"s" * 16)


def engine(options: Options) -> Callable[[Callable[[StepOutput], None]], Engine]:
    def make(on_step: Callable[[StepOutput], None]) -> Engine:
        loop = asyncio.get_running_loop()
        return build_engine(TINY, model_name="tiny", on_step=on_step, loop=loop, options=options)

    return make


async def alone() -> list[list[int]]:
    """What an engine with room for all of them says."""
    said: dict[str, list[int]] = {f"r{number}": [] for number in range(NUM_REQUESTS)}
    ended: set[str] = set()

    def on_step(output: StepOutput) -> None:
        for row in output.rows:
            said[row.key.request_id] += row.token_ids
            if row.finish is not None:
                ended.add(row.key.request_id)

    roomy = engine(Options(block_tokens=GRAIN, max_model_len=LONGEST))(on_step)
    for number in range(NUM_REQUESTS):
        await roomy.submit(asked(number), hold=False)
    await settle(lambda: len(ended) == NUM_REQUESTS, within_s=60)
    await roomy.stop()
    return list(said.values())


async def test_f20_real_pools_five_percent_above_one_request_serve_all_in_turn() -> None:
    told: list[tuple[Transfer, int]] = []
    expected = await alone()
    async with cluster() as it:
        await it.add("prefill-1", make=engine(TIGHT))

        def on_transfer(transfer: Transfer) -> None:
            told.append((transfer, decode.engine.counts().running))

        decode = await it.add("decode-1", make=engine(TIGHT), on_transfer=on_transfer)
        answers = [it.answer(asked(number)) for number in range(NUM_REQUESTS)]
        assert await asyncio.gather(*answers) == expected
    assert {transfer.result for transfer, _ in told} == {"ok"}
    assert any(running for _, running in told)  # pulled while others decoded
