"""The store as a process: ended in order, killed at any moment, asked by its operator."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diptych.config import StoreSettings, secrets_of
from diptych.core.ids import WorkerId
from diptych.kvcache_store.client import Retention, StoreClient
from diptych.kvcache_store.tenants import Receipt
from diptych.testing.platform import environment
from diptych.testing.store_process import StoreProcess, store_process
from diptych.testing.stores import Text, bring


def diptych(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "diptych.cli", "cache", *arguments, "--data-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )


def client_of(store: StoreProcess) -> StoreClient:
    return StoreClient([store.address], WorkerId("prefill-1"), lookup_s=5.0)


async def test_sigterm_writes_what_is_queued(tmp_path: Path) -> None:
    text = Text("alice", range(200), size_bytes=20_000)
    with store_process(tmp_path) as store:
        client = client_of(store)
        outcome = await client.put(text.run(anchors=[199]), deadline_s=10)  # nobody awaits the disk
        assert outcome.sent == 201
        assert await asyncio.to_thread(store.end, signal.SIGTERM) == 0
        await client.close()
        await asyncio.to_thread(store.start)
        client = client_of(store)
        assert (await bring(client, text)).num_leading == 200
        await client.close()


def workload(draw: random.Random) -> list[Text]:
    """Conversations, many with a common beginning."""
    texts: list[Text] = []
    for number in range(60):
        begin = list(draw.choice(texts).tokens)[: draw.randrange(40)] if texts else []
        own = [1000 * number + i for i in range(draw.randint(1, 40))]
        texts.append(Text(draw.choice(["alice", "bob"]), [*begin, *own], size_bytes=3000))
    return texts


async def strike(store: StoreProcess, draw: random.Random, lives: int) -> tuple[int, int]:
    """Kill at random points of a random workload; (blocks found, blocks said to be on disk)."""
    texts = workload(draw)
    on_disk: dict[int, int] = {}  # by number of the text, blocks
    for _ in range(lives):
        client = client_of(store)
        kill_after_s = draw.uniform(0.05, 0.6)
        killing = asyncio.create_task(_kill(store, kill_after_s))
        while not killing.done():
            number = draw.randrange(len(texts))
            text = texts[number]
            if draw.random() < 0.6:
                end = draw.randint(1, len(text.tokens))
                run = text.run(0, end, anchors=[end - 1], retention=Retention.CHAT)
                outcome = await client.put(run, deadline_s=5, await_disk=True)
                if not outcome.dropped:
                    on_disk[number] = max(on_disk.get(number, 0), end)
            else:
                await bring(client, text)  # a wrong byte fails here
            if not client.weights:
                await asyncio.sleep(0.01)
        await killing
        await client.close()
        await asyncio.to_thread(store.start)
    client = client_of(store)
    found = 0
    for number, end in on_disk.items():
        found += min(end, (await bring(client, texts[number])).num_leading)
    await client.close()
    return found, sum(on_disk.values())


async def _kill(store: StoreProcess, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await asyncio.to_thread(store.end, signal.SIGKILL)


def check_balance(folder: Path) -> None:
    """What the operator sees: the capacity adds up, and nothing is pinned."""
    done = diptych(folder, "stats", "--json")
    assert done.returncode == 0, done.stderr
    stats = json.loads(done.stdout)
    disk = stats["disk"]
    parts = ("live", "dead", "pinned", "reserved", "free")
    assert disk["capacity"] == sum(disk[part] for part in parts)
    assert min(disk[part] for part in parts) >= 0
    assert disk["pinned"] == 0
    assert stats["pins"] == []


async def test_f14_f15_a_store_killed_at_random_points_finds_what_it_said_was_on_disk(
    tmp_path: Path,
) -> None:
    with store_process(tmp_path) as store:
        found, promised = await strike(store, random.Random(15), lives=6)
        assert promised > 300
        assert found > 0.99 * promised
        check_balance(tmp_path)
        assert diptych(tmp_path, "verify").returncode == 0
        check_balance(tmp_path)


async def test_killed_with_encryption_and_little_room_it_still_serves_nothing_wrong(
    tmp_path: Path,
) -> None:
    room = (
        "--cache-encrypt",
        "--cache-disk-bytes",
        str(4 << 20),
        "--cache-memory-bytes",
        "1048576",
    )
    with store_process(tmp_path, *room) as store:
        await strike(store, random.Random(16), lives=3)
        check_balance(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_killed_a_hundred_times(tmp_path: Path) -> None:
    with store_process(tmp_path) as store:
        found, promised = await strike(store, random.Random(100), lives=100)
        assert found > 0.99 * promised
        check_balance(tmp_path)


async def test_an_operator_sees_lists_verifies_and_deletes(tmp_path: Path) -> None:
    with store_process(tmp_path, "--cache-encrypt") as store:
        client = client_of(store)
        for tenant in ("alice", "bob"):
            text = Text(tenant, range(20))
            await client.put(text.run(), deadline_s=10, await_disk=True)
        shown = diptych(tmp_path, "stats")
        assert "alice" in shown.stdout
        assert "reserved" in shown.stdout
        rows = json.loads(diptych(tmp_path, "ls", "--json").stdout)
        assert {row["tenant"] for row in rows} == {"alice", "bob"}
        assert all(row["is_encrypted"] and row["parts"] == 20 for row in rows)
        assert "encrypted" in diptych(tmp_path, "ls").stdout
        removed = diptych(tmp_path, "rm", "--tenant", "alice")
        receipt = Receipt(**json.loads(removed.stdout))
        assert (receipt.tenant, receipt.parts, receipt.key_destroyed) == ("alice", 20, True)
        _, master_key = secrets_of(StoreSettings(data_dir=tmp_path))
        assert receipt.is_genuine(master_key)
        assert (await bring(client, Text("alice", range(20)))).num_leading == 0
        assert (await bring(client, Text("bob", range(20)))).num_leading == 20
        again = diptych(tmp_path, "rm", "--tenant", "alice")
        assert again.returncode == 1
        assert "holds nothing of such a one" in again.stderr
        dead, carol = "127.0.0.1:1", Text("carol", range(20))
        await client.put(carol.run(), deadline_s=10, await_disk=True)
        nodes = ("--tenant", "carol", "--store-address", f"{store.address}, {dead}")
        removed = diptych(tmp_path, "rm", *nodes)
        assert Receipt(**json.loads(removed.stdout)).parts == 20
        assert (removed.returncode, dead in removed.stderr) == (1, True)
        assert diptych(tmp_path, "verify").stdout.startswith("read 20,000 bytes; dropped 0")
        assert "freed" in diptych(tmp_path, "gc", "--foreign").stdout
        await client.close()


async def test_a_folder_can_be_looked_at_without_a_store(tmp_path: Path) -> None:
    with store_process(tmp_path, "--cache-disk-bytes", str(64 << 20)) as store:
        client = client_of(store)
        await client.put(Text("alice", range(20)).run(), deadline_s=10, await_disk=True)
        await client.close()
        await asyncio.to_thread(store.end, signal.SIGKILL)
        check_balance(tmp_path)
        (row,) = json.loads(diptych(tmp_path, "ls", "--json").stdout)
        assert (row["tenant"], row["parts"]) == ("alice", 20)
        segment = tmp_path / "cache" / "segments" / row["name"]
        data = bytearray(segment.read_bytes())
        data[data.index(bytes(Text("alice", range(20)).item(7).payload))] ^= 1
        segment.write_bytes(data)
        damaged = diptych(tmp_path, "verify")
        assert damaged.returncode == 1
        assert "dropped 1 damaged" in damaged.stdout


def test_a_folder_has_one_store(tmp_path: Path) -> None:
    with store_process(tmp_path):
        other = subprocess.run(
            [sys.executable, "-m", "diptych.cli", "store", "--listen", "127.0.0.1:0"],
            capture_output=True,
            text=True,
            timeout=30,
            env=environment() | {"DIPTYCH_DATA_DIR": str(tmp_path)},
            check=False,
        )
        assert other.returncode == 2
        assert "in use by another store" in other.stderr


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "FORMAT").write_text("99\n")
    refused = diptych(tmp_path, "stats")
    assert refused.returncode == 2
    assert "has format '99'; expected 1" in refused.stderr


def test_no_cache_is_said_plainly(tmp_path: Path) -> None:
    done = diptych(tmp_path, "ls")
    assert done.returncode == 1
    assert done.stderr == f"diptych: there is no KV cache at {tmp_path / 'cache'}\n"


def test_what_is_kept_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    with store_process(tmp_path) as store:

        async def fill() -> None:
            client = client_of(store)
            await client.put(Text("alice", range(4)).run(), deadline_s=10, await_disk=True)
            await client.close()

        asyncio.run(fill())
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    private = [path for path in files if path.suffix in (".seg", ".json")]
    assert len(private) == 2
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in private)
