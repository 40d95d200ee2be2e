"""F10: a router dies with requests in flight. Real routers and wires; workers on a script."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from diptych.core.errors import Lost
from diptych.core.ids import Key
from diptych.core.phases import Role
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.decode_service.client import DecodeClient
from diptych.gateway.events import Emit
from diptych.gateway.hops import Hops
from diptych.gateway.pipeline import Call, Pipeline
from diptych.prefill_service.client import PrefillClient
from diptych.router.client import Reporters, RouterClient, status, watch
from diptych.supervisor.ports import FreePorts
from diptych.testing.clock import settle
from diptych.testing.fleet import reporting
from diptych.testing.platform import CLI, environment
from diptych.testing.scripted import Script, continuation
from diptych.testing.workers import decode_worker, prefill_worker
from diptych.transport.session import SessionPool

SOON_S = 30.0
IN_FLIGHT = 60
LATE = 15
MAX_NEW = 80
SCRIPT = Script(step_s=0.02, num_blocks=4096, num_slots=128)


@dataclass
class Routers:
    """Two processes that hear each other."""

    addresses: list[str]
    processes: dict[str, "subprocess.Popen[bytes]"]

    @property
    def all(self) -> str:
        return ",".join(self.addresses)

    def kill(self, address: str) -> None:
        self.processes[address].kill()
        self.processes[address].wait()


@contextmanager
def two_routers(folder: Path) -> Iterator[Routers]:
    free_port = FreePorts()
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    made = Routers(addresses, {})
    try:
        for number, (address, other) in enumerate([addresses, addresses[::-1]], 1):
            flags = ["--listen", address, "--peers", other, "--router-id", f"router-{number}"]
            command = [*CLI, "router", *flags, "--data-dir", str(folder)]
            made.processes[address] = subprocess.Popen(
                command, env=environment(), stderr=subprocess.DEVNULL
            )
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()


@dataclass
class Gateway:
    """As much of one as places requests; `outputs` are those of running and finished ones."""

    pipeline: Pipeline
    reporters: Reporters
    outputs: dict[str, list[int]]

    async def ask(self, name: str) -> None:
        """Run one request, and hold its output against the undisturbed one."""
        generation = request(name)
        output = self.outputs[name] = []

        def take(emit: Emit) -> bool:
            output.extend(emit.token_ids)
            return True

        end, _ = await self.pipeline.run(Call(generation, (), "tenant"), take)
        assert end is not None
        assert output == continuation(generation, SCRIPT)


def request(name: str) -> Generation:
    prompt = tuple((31 * i + sum(name.encode())) % 380 + 3 for i in range(20 + len(name) * 7))
    return Generation(
        Key(name, 1), prompt, Sampling(seed=5, ignore_eos=True), MAX_NEW, scope=b"s" * 16
    )


@asynccontextmanager
async def platform(routers: Routers) -> AsyncIterator[Gateway]:
    """Two workers of each role that report to both routers, and a gateway."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        workers = []
        for number in (1, 2):
            for role, make in ((Role.PREFILL, prefill_worker), (Role.DECODE, decode_worker)):
                worker = await enter(make(f"{role}-{number}", SCRIPT))
                await enter(reporting(routers.all, role, worker.engine, worker.rank))
                workers.append(worker)
        reporters = await enter(reporting(routers.all, Role.GATEWAY))
        pool = SessionPool("gateway-1")
        stack.push_async_callback(pool.close)
        client = RouterClient(reporters.preferred)
        stack.push_async_callback(client.close)
        pipeline = Pipeline(Hops(client, PrefillClient(pool), DecodeClient(pool)))
        for address in routers.addresses:
            await joined(address)
        await settle(lambda: reporters.fleet is not None and reporters.fleet.ready, SOON_S)
        yield Gateway(pipeline, reporters, {})
        await pipeline.close()
        await settle(lambda: all(worker.is_at_baseline() for worker in workers), SOON_S)


async def joined(address: str) -> None:
    """Wait until a router knows all members."""
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                if len((await status(address, SOON_S)).members) == 5:
                    return
            except Lost:
                pass  # it is starting
            await asyncio.sleep(0.05)


async def test_f10_a_killed_router_costs_no_stream_a_token_and_the_other_takes_over(
    tmp_path: Path,
) -> None:
    with two_routers(tmp_path) as routers:
        await kill_one_of(routers)


async def kill_one_of(routers: Routers) -> None:
    async with platform(routers) as gateway:
        home, other = gateway.reporters.preferred()
        async with asyncio.TaskGroup() as running:
            for number in range(IN_FLIGHT):
                running.create_task(gateway.ask(f"early-{number}"))
            outputs = gateway.outputs
            await settle(lambda: sum(len(o) > 2 for o in outputs.values()) > IN_FLIGHT // 2, SOON_S)
            assert (await status(home, SOON_S)).leases >= IN_FLIGHT // 2
            assert (await status(other, SOON_S)).leases == 0
            routers.kill(home)
            for number in range(LATE):  # nobody waits for the dead one
                running.create_task(gateway.ask(f"late-{number}"))
            async with asyncio.timeout(SOON_S):  # those that run are opened again there
                async for fleet in watch(other, period_s=0.1):
                    if fleet.leases > LATE:
                        break
        assert len(outputs) == IN_FLIGHT + LATE
        assert gateway.reporters.preferred()[0] == other
        assert (await status(other, SOON_S)).stale_peers == 1
