"""A store whose machine's clock is set while it holds blocks for days (F23)."""

from pathlib import Path

from diptych.core.ids import WorkerId
from diptych.kvcache_store.client import Retention, StoreClient
from diptych.kvcache_store.retention import DAY_S
from diptych.testing.clock import FakeClock
from diptych.testing.stores import RunningStore, Text, bring, running_store

MIDNIGHT_S = 20_000 * DAY_S
HOUR_S = 3600


async def put(client: StoreClient, text: Text) -> None:
    run = text.run(anchors=[len(text.tokens) - 1], retention=Retention.AGENT)
    outcome = await client.put(run, deadline_s=10, await_disk=True)
    assert outcome.on_disk == len(text.tokens) + 1


def client_of(store: RunningStore) -> StoreClient:
    return StoreClient([store.address], WorkerId("prefill-1"), lookup_s=2.0)


async def test_f23_an_hour_to_either_side_costs_no_block_and_no_store_its_start(
    tmp_path: Path,
) -> None:
    true_s = MIDNIGHT_S + 600  # an hour back is yesterday
    texts = [Text("alice", range(start, start + 12)) for start in range(0, 100, 20)]
    clock = FakeClock(true_s)
    async with running_store(tmp_path, clock=clock) as store:
        client = client_of(store)
        for number, ahead_s in enumerate((0, HOUR_S, -HOUR_S, HOUR_S, 0)):
            clock.now_s = true_s + ahead_s
            await put(client, texts[number])
            await store.caretaker.sweep(hurry=True)
            for text in texts[: number + 1]:
                assert (await bring(client, text)).num_leading == 12
        await client.close()
    for ahead_s in (-HOUR_S, HOUR_S):
        clock.now_s = true_s + ahead_s
        async with running_store(tmp_path, clock=clock) as store:
            client = client_of(store)
            await store.caretaker.sweep(hurry=True)
            for text in texts:
                assert (await bring(client, text)).num_leading == 12
            await client.close()


async def test_f23_what_was_stored_by_a_clock_an_hour_behind_is_kept_as_long_as_promised(
    tmp_path: Path,
) -> None:
    text, true_s = Text("alice", range(12)), MIDNIGHT_S + 600
    clock = FakeClock(true_s - HOUR_S)
    async with running_store(tmp_path, clock=clock) as store:
        client = client_of(store)
        await put(client, text)
        clock.now_s = true_s + 3 * DAY_S - 1
        await store.caretaker.sweep(hurry=True)
        assert (await client.lookup(text.whose, text.chain)).end == 12
        clock.now_s = true_s + 5 * DAY_S
        await store.caretaker.sweep(hurry=True)
        assert (await client.lookup(text.whose, text.chain)).end == 0
        await client.close()
