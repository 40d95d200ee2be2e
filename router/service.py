"""The Router service: streams in, the dispatcher's answers out."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc.aio

from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import BadRequest, Expired, Lost, NotFound, Refused
from diptych.core.phases import Role
from diptych.router import wire
from diptych.router.canary import Canaries
from diptych.router.dispatcher import Dispatcher
from diptych.router.messages import (
    SHOWN_DECISIONS,
    Answer,
    BlockChanges,
    BlockTier,
    Drain,
    Fleet,
    Join,
    Load,
    PrefillAt,
    RefusedBy,
    SkipTo,
)
from diptych.router.placing import Held, Placing
from diptych.router.prefix_index import Missing
from diptych.router.registry import Record, StreamRegistry
from diptych.router.sharing import Sharing
from diptych.router.signals import Scale, readings
from diptych.router.trials import Blame, Verdict
from diptych.telemetry import metrics as m
from diptych.transport.tls import check_claim

log = logging.getLogger(__name__)

FIRST_MESSAGE_S = 5.0  # a member that says nothing is not let in
MIN_WATCH_GAP_S = 0.1
MIN_SHARE_GAP_S = 0.2
MAX_SHARE_GAP_S = 0.4  # who is silent for longer than a second does not count
_TIER_NAMES = {BlockTier.DEVICE: "device", BlockTier.HOST: "memory", BlockTier.DISK: "disk"}

Context = Any  # grpc.aio.ServicerContext of whatever messages


class RouterService(pb_grpc.RouterServicer):
    """Feeds one dispatcher from all streams; wakes it when a deadline is due."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        registry: StreamRegistry,
        metrics: m.Metrics,
        sharing: Sharing | None = None,
        router_id: str = "",
        canaries: Canaries | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._sharing = sharing or Sharing(dispatcher)
        self._router_id = router_id
        self._registry = registry
        self._answers: dict[int, Callable[[Answer], None]] = {}  # by lease
        self._fleet_news: dict[int, asyncio.Event] = {}  # by stream
        self._share_news: dict[int, asyncio.Event] = {}  # likewise
        self._shared_version = 0
        self._drains: dict[int, Drain] = {}  # not told yet, by the stream of their member
        self._streams = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._decisions = metrics.histogram(m.ROUTER_DECISION_SECONDS)
        self._waits = metrics.histogram(m.ROUTER_QUEUE_SECONDS)
        self._refusals = metrics.counter(m.ROUTER_REFUSED)
        self._scale = Scale(dispatcher)
        dispatcher.on_first_token = metrics.histogram(m.TTFT_ERROR).observe
        self._verdicts = metrics.counter(m.CANARIES)
        self._seen_version = 0  # of who is ready
        self._canaries = canaries
        if canaries is not None:
            canaries.on_verdict = self._tried_out
        metrics.pull(self._readings)
        registry.watch(lambda _member, _record: self._tell_fleet())

    def register(self, server: grpc.aio.Server) -> None:
        """Serve on `server`."""
        pb_grpc.add_RouterServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Place(self, requests: AsyncIterator[pb.PlaceUp], context: Context) -> None:
        """The leases of one client; they end with the stream."""
        placing = Placing(
            self._dispatcher, self._answers, act=self._pump, noted=self._note, clock=_now_s
        )
        reader = asyncio.create_task(_hear(placing, requests))
        reader.add_done_callback(lambda _: placing.downs.put_nowait(None))
        try:
            while (down := await placing.downs.get()) is not None:
                await context.write(down)
            await reader
        finally:
            reader.cancel()
            placing.close()

    async def Report(self, requests: AsyncIterator[pb.ReportUp], context: Context) -> None:
        """Membership of one process; it ends with the stream."""
        first = await _first(requests)
        if first.WhichOneof("body") != "join":
            raise BadRequest("Report begins with join")
        join = wire.join_from_pb(first.join)
        check_claim(context, join.role)
        stream = next(self._streams)
        news = self._fleet_news[stream] = asyncio.Event()
        news.set()
        log.info("member joined member=%s role=%s at=%s", join.member_id, join.role, join.address)
        self._registry.announce(_record(join, stream))
        asks: deque[int] = deque()  # numbers from which block changes are missing

        def ask(missing: Missing) -> None:
            asks.append(missing.next_seq)
            news.set()

        reader = asyncio.create_task(self._read_report(join, stream, requests, ask))
        reader.add_done_callback(lambda _: news.set())
        try:
            self._pump()
            while True:
                await news.wait()
                if reader.done():
                    break
                news.clear()
                if (drain := self._drains.pop(stream, None)) is not None:
                    await context.write(pb.ReportDown(drain=wire.drain_to_pb(drain)))
                while asks:
                    await context.write(pb.ReportDown(missing_from=asks.popleft()))
                await context.write(pb.ReportDown(fleet=wire.fleet_to_pb(self._fleet())))
            await reader
        finally:
            reader.cancel()
            del self._fleet_news[stream]
            self._drains.pop(stream, None)
            self._registry.withdraw(join.member_id, stream)
            log.info("member left member=%s role=%s", join.member_id, join.role)
            self._pump()

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.Fleet:
        """Everything at this moment."""
        return wire.fleet_to_pb(self._shown())

    async def Watch(self, request: pb.FleetWatch, context: Context) -> None:
        """The fleet every so often, at once when it changes, until the caller leaves."""
        stream = next(self._streams)
        news = self._fleet_news[stream] = asyncio.Event()
        period_s = max(0.0, request.period_ms / 1000 - MIN_WATCH_GAP_S)
        try:
            while True:
                news.clear()
                await context.write(wire.fleet_to_pb(self._shown()))
                await asyncio.sleep(MIN_WATCH_GAP_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(period_s):
                        await news.wait()
        finally:
            del self._fleet_news[stream]

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.Fleet:
        """Tell a worker to be drained, or no more; place nothing there from this moment."""
        record = self._registry.find(request.member_id)
        if record is None:
            raise NotFound("no such worker", code="worker_not_found")
        if record.join.role is Role.GATEWAY:
            raise BadRequest("only workers are drained by the router", param="member_id")
        drain = wire.drain_from_pb(request.drain)
        log.info("drain member=%s on=%s limit_s=%g", request.member_id, drain.is_on, drain.limit_s)
        load = replace(record.load, draining=drain.is_on)
        self._registry.report(request.member_id, record.stream, load, record.reported_s)
        self._drains[record.stream] = drain
        self._tell_fleet()
        self._pump()
        return wire.fleet_to_pb(self._fleet())

    async def ShareLedger(self, request: pb.ShareRequest, context: Context) -> None:
        """What this router carries, whenever it changes, and twice a second anyway."""
        stream = next(self._streams)
        news = self._share_news[stream] = asyncio.Event()
        try:
            while True:
                news.clear()
                await context.write(wire.share_to_pb(self._sharing.mine(_now_s())))
                await asyncio.sleep(MIN_SHARE_GAP_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_SHARE_GAP_S - MIN_SHARE_GAP_S):
                        await news.wait()
        finally:
            del self._share_news[stream]

    def wake(self) -> None:
        """Another router's work has changed: look again at who waits."""
        self._pump()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    async def _read_report(
        self,
        join: Join,
        stream: int,
        requests: AsyncIterator[pb.ReportUp],
        ask: Callable[[Missing], None],
    ) -> None:
        was_draining = False
        async for message in requests:
            if message.WhichOneof("body") == "blocks":
                self._announced(join, stream, wire.blocks_from_pb(message.blocks), ask)
                continue
            if message.WhichOneof("body") != "load":
                raise BadRequest("Report: after join come load and blocks")
            load = wire.load_from_pb(message.load)
            if not self._registry.report(join.member_id, stream, load, _now_s()):
                if self._registry.find(join.member_id) is not None:
                    raise Refused(f"another process joined as {join.member_id}")
                raise Lost(f"{join.member_id} was silent for too long; join again")
            record = self._registry.find(join.member_id)
            assert record is not None
            self._dispatcher.reported(record)
            if load.draining != was_draining:
                was_draining = load.draining
                self._tell_fleet()
            self._pump()

    def _announced(
        self, join: Join, stream: int, blocks: BlockChanges, ask: Callable[[Missing], None]
    ) -> None:
        """A hint: nobody waits for it, so nothing is dispatched because of it."""
        record = self._registry.find(join.member_id)
        if record is None or record.stream != stream:
            return  # its next report will say so
        missing = self._dispatcher.announced(join.member_id, join.incarnation, blocks)
        if missing is not None:
            ask(missing)

    def _pump(self) -> None:
        """Let the dispatcher act, hand its answers out, and set the next wake-up."""
        now_s, policy = _now_s(), self._policy
        with self._decisions.time():
            self._dispatcher.dispatch(now_s)
        if self._policy != policy:
            log.warning("policy changed policy=%s", self._policy)
            self._tell_fleet()
        pairs = self._dispatcher.pairs
        if pairs.version != self._seen_version:
            self._seen_version = pairs.version
            self._tell_fleet()
        if pairs.is_stirred and self._canaries is not None:
            pairs.is_stirred = False
            self._canaries.wake()
        for lease, answer in self._dispatcher.outbox:
            if (tell := self._answers.get(lease)) is not None:
                tell(answer)
        self._dispatcher.outbox.clear()
        if self._sharing.version != self._shared_version:
            self._shared_version = self._sharing.version
            for news in self._share_news.values():
                news.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_s = self._dispatcher.next_wake_s()
        if wake_s is not None:
            self._timer = asyncio.get_running_loop().call_at(max(wake_s, now_s), self._pump)

    def _note(self, held: Held, answer: Answer) -> None:
        want = held.want
        if isinstance(answer, PrefillAt | SkipTo) and answer.attempt == want.attempt:
            waited_s = _now_s() - held.opened_s
            self._waits.labels(want.priority_class or "normal").observe(waited_s)
        if isinstance(answer, RefusedBy):
            self._refusals.labels(answer.code).inc()
            log.info("refused request=%s code=%s", want.request_id, answer.code)

    def _tried_out(self, verdict: Verdict) -> None:
        result = {None: "ok", Blame.NOBODY: "busy"}.get(verdict.blame, "failed")
        self._verdicts.labels(result).inc()
        self._pump()

    def _readings(self) -> Iterator[m.Reading]:
        dispatcher = self._dispatcher
        yield m.ROUTER_LEASES.at(len(dispatcher.ledger.entries))
        yield m.ROUTER_WAITING.at(len(dispatcher.prompts), "prompts")
        yield m.ROUTER_WAITING.at(len(dispatcher.handoffs), "handoffs")
        yield m.ROUTER_POLICY.at(1, self._policy)
        stale = self._sharing.num_stale
        yield m.ROUTER_PEERS.at(self._sharing.num_peers - stale, "heard")
        yield m.ROUTER_PEERS.at(stale, "stale")
        yield m.ROUTER_BREAKERS.at(dispatcher.breakers.num_open(_now_s()))
        yield m.ROUTER_BLOCKED.at(len(dispatcher.blocked))
        yield m.PAIRS_BAD.at(dispatcher.pairs.num_bad)
        if dispatcher.pairs.must_prove:
            for proven, is_ok in dispatcher.pairs.states():
                yield m.CANARY_OK.at(is_ok, proven)
        index = dispatcher.index
        yield m.INDEX_BLOCKS.at(len(index))
        for tier, name in _TIER_NAMES.items():
            yield m.INDEX_TIER_BLOCKS.at(index.num_in(tier), name)
        yield m.INDEX_GAPS.at(index.gaps_total)
        yield m.INDEX_EVICTED.at(index.evicted_total)
        silent = len(dispatcher.chooser.load_only())
        yield m.INDEX_MEMBERS.at(silent, "load_only")
        yield m.INDEX_MEMBERS.at(len(index.holders()), "announcing")
        for worker, accuracy in dispatcher.chooser.accuracies():
            yield m.INDEX_ACCURACY.at(accuracy, worker)
        for (phase, reason), count in dispatcher.explained.counts.items():
            yield m.ROUTE_REASON.at(count, phase, reason)
        yield from readings(self._scale.now(_now_s()), dispatcher.demand, _now_s())

    @property
    def _policy(self) -> str:
        """By what is decided."""
        return "own_ledger" if self._registry.is_blind else "cost"

    def _fleet(self) -> Fleet:
        """What members need to know."""
        return replace(
            self._dispatcher.fleet(_now_s()),
            policy=self._policy,
            router_id=self._router_id,
            router_life=self._sharing.life,
            peers=self._sharing.num_peers,
            stale_peers=self._sharing.num_stale,
        )

    def _shown(self) -> Fleet:
        """And what people want to see."""
        now_s = _now_s()
        return replace(
            self._fleet(),
            desired={role.value: n for role, n in self._scale.now(now_s).desired.items()},
            decisions=self._dispatcher.explained.newest(SHOWN_DECISIONS, now_s),
        )

    def _tell_fleet(self) -> None:
        for news in self._fleet_news.values():
            news.set()


def _record(join: Join, stream: int) -> Record:
    now_s = _now_s()
    # Until its first report a worker counts as empty; that comes with the next message.
    load = Load(free_slots=join.num_slots, free_blocks=join.num_blocks)
    return Record(join, load, stream, joined_s=now_s, reported_s=now_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _hear(placing: Placing, requests: AsyncIterator[pb.PlaceUp]) -> None:
    async for message in requests:
        placing.hear(message)


async def _first(requests: AsyncIterator[pb.ReportUp]) -> pb.ReportUp:
    try:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            return await anext(aiter(requests))
    except TimeoutError:
        raise Expired(f"Report: no first message within {FIRST_MESSAGE_S:g} s") from None
    except StopAsyncIteration:
        raise BadRequest("Report: the stream ended before its first message") from None
