"""Chains of blocks over all nodes of a tier: look them up, fetch blocks and anchors, put them.

Several nodes are one tier. A node that is lost is misses, and nothing else: no call here raises
because of one, none outlasts its deadline, and a node that is down is not asked until it has
answered a greeting in the background.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from diptych.core.errors import DiptychError
from diptych.core.ids import BlockHash, WorkerId
from diptych.kvcache_store.items import NOWHERE
from diptych.kvcache_store.links import Transport
from diptych.kvcache_store.messages import Whose
from diptych.kvcache_store.node import Node
from diptych.kvcache_store.placement import LOOKED_AT, SEGMENT_BLOCKS, ranked, segment_key
from diptych.kvcache_store.retention import Retention
from diptych.kvcache_store.transfers import Fetched, Hit, Outcome, Place, Run
from diptych.transport.channel import Dial, connect
from diptych.transport.frames import BlockWriter, Part, PartKind

LOOKUP_S = 0.25  # a healthy node answers within milliseconds; one that does not is down
UNSENT_BYTES = 256 << 20
LEAVE_S = 30.0  # for what is under way at a node that is used no more

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ClientCounts:
    """Since start."""

    lookups: int = 0
    lookups_failed: int = 0  # at a node, which then counts as down
    fetched_bytes: int = 0
    fetches_failed: int = 0
    parts_damaged: int = 0
    parts_sent: int = 0
    parts_dropped: int = 0


class StoreClient:
    """All nodes of a tier for one worker."""

    def __init__(
        self,
        addresses: Sequence[str],
        worker_id: WorkerId,
        *,
        lookup_s: float = LOOKUP_S,
        unsent_bytes: int = UNSENT_BYTES,
        transport: Transport = Transport.AUTO,
        dial: Dial = connect,
    ) -> None:
        self.counts = ClientCounts()
        self._nodes: dict[str, Node] = {}
        self._leaving: dict[asyncio.Task[None], Node] = {}
        self._node = partial(Node, worker_id=worker_id, transport=transport, dial=dial)
        self._lookup_s = lookup_s
        self._unsent_limit = unsent_bytes
        self._unsent_bytes = 0
        self.use(addresses)

    def use(self, addresses: Sequence[str]) -> None:
        """These are the nodes from now on; others finish what is under way and are closed."""
        wanted = dict.fromkeys(addresses)
        for address in [known for known in self._nodes if known not in wanted]:
            log.info("node is used no more node=%s", address)
            node = self._nodes.pop(address)
            leaving = asyncio.create_task(node.leave(LEAVE_S))
            self._leaving[leaving] = node
            leaving.add_done_callback(self._leaving.pop)
        for address in wanted:
            if address not in self._nodes:
                self._nodes[address] = self._node(address)

    @property
    def has_nodes(self) -> bool:
        """Whether there is any, up or not."""
        return bool(self._nodes)

    @property
    def transports(self) -> dict[str, Transport]:
        """How blocks travel to each node, as far as was tried."""
        return {
            address: Transport.SHM if node.shares_memory else Transport.GRPC
            for address, node in self._nodes.items()
        }

    @property
    def weights(self) -> dict[str, float]:
        """Of the nodes that are up: their shares of what is put."""
        return {address: node.weight for address, node in self._nodes.items() if node.is_up}

    async def lookup(
        self,
        whose: Whose,
        chain: Sequence[BlockHash],
        *,
        start: int = 0,
        exact_only: bool = False,
        pin_s: float = 0.0,
    ) -> Hit:
        """The blocks from `start` on that are there without a gap, and the anchors among them.

        `chain` begins at its first block even if `start` does not. Within `lookup_s`.
        """
        self.counts.lookups += 1
        chain = tuple(chain)
        asked = self._asked(chain, start)
        answers = await asyncio.gather(
            *(
                self._ask(node, whose, chain, indices, pin_s)
                for node, indices in asked.items()
                if indices
            )
        )
        blocks: dict[int, Place] = {}
        anchors: dict[int, Place] = {}
        pins: list[tuple[str, int]] = []
        for found_blocks, found_anchors, pin in answers:
            _merge(blocks, found_blocks)
            _merge(anchors, found_anchors)
            pins += pin
        end = start
        while end in blocks and (blocks[end].found.is_exact or not exact_only):
            end += 1
        return Hit(
            whose=whose,
            chain=chain,
            start=start,
            blocks=tuple(blocks[i] for i in range(start, end)),
            anchors={i: place for i, place in sorted(anchors.items()) if start <= i < end},
            pins=tuple(pins),
        )

    async def get(
        self,
        hit: Hit,
        kind: PartKind,
        indices: Sequence[int],
        writer: BlockWriter,
        *,
        deadline_s: float,
    ) -> Fetched:
        """Fetch blocks or anchors of a hit by their index. Only what is in `done` was verified.

        No byte is written after it has returned.
        """
        places = hit.anchors if kind is PartKind.ANCHOR else dict(enumerate(hit.blocks, hit.start))
        by_node: dict[str, list[int]] = {}
        for index in indices:
            if index in places:
                by_node.setdefault(places[index].node, []).append(index)
        for address in by_node.keys() - self._nodes.keys():  # used no more since it was found
            self.counts.fetches_failed += 1
            del by_node[address]
        pulls = [
            self._nodes[address].pull(
                hit.whose, kind, [hit.chain[i] for i in wanted], writer, deadline_s
            )
            for address, wanted in by_node.items()
        ]
        done: set[int] = set()
        size_bytes = 0
        for wanted, pulled in zip(by_node.values(), await asyncio.gather(*pulls), strict=True):
            done.update(i for i in wanted if hit.chain[i] in pulled.done)
            size_bytes += pulled.size_bytes
            self.counts.fetches_failed += not pulled.is_whole
            self.counts.parts_damaged += pulled.is_damaged
        self.counts.fetched_bytes += size_bytes
        return Fetched(tuple(indices), frozenset(done), size_bytes)

    async def release(self, hit: Hit) -> None:
        """Let go of what a look-up has pinned. Without it pins end by themselves."""
        pins = [(self._nodes[node], pin) for node, pin in hit.pins if node in self._nodes]
        await asyncio.gather(*(node.release(pin, self._lookup_s) for node, pin in pins))

    async def put(self, run: Run, *, deadline_s: float, await_disk: bool = False) -> Outcome:
        """Store what the tier lacks. Above `unsent_bytes` under way a run is dropped at once."""
        num_parts = len(run.blocks) + len(run.anchors)
        if not num_parts or run.retention is Retention.NONE:
            return Outcome()
        if self._unsent_bytes + run.size_bytes > self._unsent_limit:
            return self._dropped(num_parts)
        self._unsent_bytes += run.size_bytes
        try:
            pieces = self._pieces(run)
            outcomes = await asyncio.gather(
                *(self._put(node, runs, deadline_s, await_disk) for node, runs in pieces.items())
            )
        finally:
            self._unsent_bytes -= run.size_bytes
        if not pieces:
            return self._dropped(num_parts)
        total = Outcome(
            sent=sum(o.sent for o in outcomes),
            on_disk=sum(o.on_disk for o in outcomes),
            dropped=sum(o.dropped for o in outcomes),
        )
        self.counts.parts_sent += total.sent
        self.counts.parts_dropped += total.dropped
        return total

    async def put_slot(
        self, whose: Whose, slot: Part, retention: Retention, *, deadline_s: float
    ) -> bool:
        """Keep a slot in the memory of a node, for a while; False if it was dropped."""
        nodes = ranked(self.weights, slot.name)
        size_bytes = len(slot.payload)
        has_room = self._unsent_bytes + size_bytes <= self._unsent_limit
        if retention is Retention.NONE or not nodes or not has_room:
            self._dropped(1)
            return False
        self._unsent_bytes += size_bytes
        try:
            node = self._nodes[nodes[0]]
            stored = await node.put_slot(whose, slot, retention=retention, deadline_s=deadline_s)
        except DiptychError as error:
            log.warning("put failed node=%s code=%s", nodes[0], error.code)
            self._dropped(1)
            return False
        finally:
            self._unsent_bytes -= size_bytes
        self.counts.parts_sent += stored.taken
        return True

    async def get_slot(
        self, whose: Whose, name: BlockHash, writer: BlockWriter, *, deadline_s: float
    ) -> bool:
        """Fetch a slot; True only if it was verified. No byte is written after it returned."""
        for node in [self._nodes[each] for each in ranked(self.weights, name)[:LOOKED_AT]]:
            pulled = await node.pull(whose, PartKind.SLOT, [name], writer, deadline_s)
            self.counts.fetched_bytes += pulled.size_bytes if pulled.is_whole else 0
            self.counts.parts_damaged += pulled.is_damaged
            if pulled.is_whole:
                return True
        return False

    async def close(self) -> None:
        leaving = dict(self._leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await asyncio.gather(*(n.close() for n in (*leaving.values(), *self._nodes.values())))

    def _asked(self, chain: Sequence[BlockHash], start: int) -> dict[Node, list[int]]:
        """Which node is asked for which blocks."""
        weights = self.weights
        asked: dict[Node, list[int]] = {self._nodes[address]: [] for address in weights}
        for first, last in _segments(start, len(chain)):
            for address in ranked(weights, segment_key(chain, first))[:LOOKED_AT]:
                asked[self._nodes[address]] += range(first, last)
        return asked

    async def _ask(
        self,
        node: Node,
        whose: Whose,
        chain: Sequence[BlockHash],
        indices: Sequence[int],
        pin_s: float,
    ) -> tuple[dict[int, Place], dict[int, Place], list[tuple[str, int]]]:
        try:
            answer = await node.lookup(
                whose, [chain[i] for i in indices], pin_s=pin_s, timeout_s=self._lookup_s
            )
        except DiptychError as error:
            self.counts.lookups_failed += 1
            log.warning("look-up failed node=%s code=%s", node.address, error.code)
            return {}, {}, []
        pins = [(node.address, answer.pin)] if answer.pin else []
        return (
            {i: Place(node.address, f) for i, f in zip(indices, answer.blocks, strict=True)},
            {i: Place(node.address, f) for i, f in zip(indices, answer.anchors, strict=True)},
            pins,
        )

    def _pieces(self, run: Run) -> dict[Node, list[Run]]:
        """The run by the nodes that keep it; neighbours of one node stay together."""
        weights = self.weights
        pieces: dict[Node, list[tuple[int, int]]] = {}
        if not weights:
            return {}
        for first, last in _segments(run.start, run.start + len(run.blocks)):
            node = self._nodes[ranked(weights, segment_key(run.chain, first))[0]]
            spans = pieces.setdefault(node, [])
            if spans and spans[-1][1] == first:
                spans[-1] = (spans[-1][0], last)
            else:
                spans.append((first, last))
        return {node: [_cut(run, *span) for span in spans] for node, spans in pieces.items()}

    async def _put(
        self, node: Node, runs: Sequence[Run], deadline_s: float, await_disk: bool
    ) -> Outcome:
        sent = on_disk = dropped = 0
        for number, run in enumerate(runs):
            try:
                one = await node.put(
                    run.whose,
                    run.blocks,
                    run.exact,
                    {i - run.start: part for i, part in run.anchors.items()},
                    retention=run.retention,
                    parent=run.chain[run.start - 1] if run.start else run.whose.scope,
                    first_index=run.start,
                    is_complete=run.is_complete,
                    await_disk=await_disk,
                    deadline_s=deadline_s,
                )
            except DiptychError as error:
                log.warning("put failed node=%s code=%s", node.address, error.code)
                dropped += sum(len(r.blocks) + len(r.anchors) for r in runs[number:])
                break
            sent += one.taken
            on_disk += one.on_disk
            dropped += one.dropped
        return Outcome(sent, on_disk, dropped)

    def _dropped(self, num_parts: int) -> Outcome:
        self.counts.parts_dropped += num_parts
        return Outcome(dropped=num_parts)


def _segments(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Spans of indices that lie in one segment of the chain."""
    while start < end:
        last = min(end, start - start % SEGMENT_BLOCKS + SEGMENT_BLOCKS)
        yield start, last
        start = last


def _merge(into: dict[int, Place], found: Mapping[int, Place]) -> None:
    """Of two places the faster one counts."""
    for index, place in found.items():
        if place.found == NOWHERE:
            continue
        known = into.get(index)
        if known is None or place.found.tier < known.found.tier:
            into[index] = place


def _cut(run: Run, first: int, last: int) -> Run:
    return Run(
        whose=run.whose,
        chain=run.chain,
        start=first,
        blocks=run.blocks[first - run.start : last - run.start],
        exact=run.exact[first - run.start : last - run.start],
        anchors={i: part for i, part in run.anchors.items() if first <= i < last},
        retention=run.retention,
        is_complete=run.is_complete,
    )
