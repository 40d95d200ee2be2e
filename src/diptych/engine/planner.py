"""Makes plans: who computes what in the next step, and who gets or gives up pages for it.

1. A sequence that is one row away from a token gets its row. One that needs a block and finds none
   waits, and may take those of another: swapped to the host, or computed again later. The oldest of
   the most urgent class never gives up its pages, so there is always one that can go on.
2. Prompts under way go on, the most urgent and the oldest first, as far as the row budget reaches.
3. The queue is admitted in order while there are rows, slots, and blocks for all tokens and one row
   more. One that does not fit may be passed by others, BYPASS_MAX times; then they wait, too.

Sequences of a step that broke are suspects: they go on one at a time, in every second step, which
is theirs alone.
"""

from collections import Counter
from dataclasses import dataclass, field

from diptych.core.ids import Key
from diptych.core.request import PRIORITIES
from diptych.engine.anchors import AnchorCopy
from diptych.engine.imports import brought
from diptych.engine.pools import Hit, Pools
from diptych.engine.queue import Entry, Queue
from diptych.engine.requests import Request
from diptych.engine.scheduler import Limits, Piece, Plan, cut, urgency, victim
from diptych.engine.snapshots import SlotCopy, SlotFill
from diptych.engine.swap import SwapCopy
from diptych.engine.tier import TIERS

BYPASS_MAX = 16

_INTERACTIVE, _BATCH = PRIORITIES.index("interactive"), PRIORITIES.index("batch")


@dataclass(slots=True)
class Draft:
    """A plan in the making."""

    step: int
    now_s: float
    budget: int  # rows that are left
    pieces: list[Piece] = field(default_factory=list)
    loads: list[AnchorCopy] = field(default_factory=list)
    saves: list[AnchorCopy] = field(default_factory=list)
    swap_ins: list[SwapCopy] = field(default_factory=list)
    swap_outs: list[SwapCopy] = field(default_factory=list)
    fills: list[SlotFill] = field(default_factory=list)
    snapshots: list[SlotCopy] = field(default_factory=list)

    def plan(self) -> Plan:
        return Plan(
            tuple(self.pieces),
            self.step,
            tuple(self.loads),
            tuple(self.saves),
            tuple(self.swap_ins),
            tuple(self.swap_outs),
            tuple(self.fills),
            tuple(self.snapshots),
        )


class Planner:
    """Moves requests between the queue and `running`, and pages with them."""

    def __init__(self, limits: Limits, pools: Pools) -> None:
        self.running: dict[Key, Request] = {}
        self.queue = Queue(limits.class_limits_s)
        self.swapping: dict[int, list[Request]] = {}  # by step: whose pages are being copied out
        self.preemptions_total = 0
        self.swaps_total = 0  # of them: to host memory
        self.query_tokens_total = 0
        self.hit_tokens_total = 0
        self.brought_tokens_total = Counter[str]()  # of the hits, by tier
        self.resumed_total = 0
        self.snapshots_total = 0
        self.recomputed_tokens_total = 0  # after preemptions
        self._suspects: list[Request] = []
        self._was_trial = False  # the last step
        self._now_s = 0.0
        self._limits = limits
        self._pools = pools
        self._spare_blocks = pools.blocks.num_blocks // 100  # left free for those that run to grow

    def plan(self, step: int, now_s: float) -> Plan:
        """Plan `step`; idle if there is nothing that can be done now."""
        self._now_s = now_s
        draft = Draft(step, now_s, self._limits.max_batch_tokens)
        if self._suspects:
            self._suspects = [r for r in self._suspects if r.suspect and not r.ended]
        turns = [self._together, self._try]
        if self._suspects and not self._was_trial:
            turns.reverse()
        turns[0](draft)
        if not draft.pieces:
            turns[1](draft)
        self._was_trial = bool(draft.pieces) and draft.pieces[0].request.suspect
        assert draft.budget >= 0, "more sequences are running than a step has rows"
        return draft.plan()

    def suspect(self, request: Request) -> None:
        """Compute a running sequence again, alone: a step broke that it was part of."""
        del self.running[request.key]
        request.lost = request.written
        request.suspect = True
        self._pools.take_away(request)
        self.queue.put_back(request, self._now_s)
        self._suspects.append(request)

    def _try(self, draft: Draft) -> None:
        """The next rows of one suspect."""
        running = next((r for r in self._suspects if r.key in self.running), None)
        if running is None:
            self._admit_suspect(draft)
        elif not running.is_sampling:
            short = running.launched >= len(running.blocks) * self._limits.grain
            if not short or not self._make_room([running], draft):
                self._compute(running, cut(running, draft.budget), draft)

    def _admit_suspect(self, draft: Draft) -> None:
        for request in sorted(self._suspects, key=urgency):
            entry = self.queue.find(request.key)
            if entry and self._pools.slots.num_free and self._open(request, draft):
                self._admitted(entry)
                return

    def _together(self, draft: Draft) -> None:
        """Rows of all who are under no suspicion."""
        rows, prompts, needy = self._sort()
        stalled = self._make_room(needy, draft) if needy else set()
        for request in rows:
            if request not in stalled and request.slot:
                self._compute(request, 1, draft)
        prompts.sort(key=urgency)
        for request in prompts:
            if draft.budget <= 0:
                break
            if request not in stalled and request.slot:
                self._compute(request, cut(request, draft.budget), draft)
        if not stalled:
            self._admit(draft)

    def _sort(self) -> tuple[list[Request], list[Request], list[Request]]:
        """Sequences that get one row, prompts, and those of the former that need a block.

        No suspects.
        """
        grain = self._limits.grain
        rows: list[Request] = []
        prompts: list[Request] = []
        needy: list[Request] = []
        for request in self.running.values():
            if request.suspect:
                continue
            launched = request.launched
            ahead = len(request.tokens) - launched
            if ahead > 1:
                prompts.append(request)
            elif ahead or launched < request.capacity:  # else its last token is under way
                rows.append(request)
                if launched >= len(request.blocks) * grain:
                    needy.append(request)
        return rows, prompts, needy

    def _make_room(self, needy: list[Request], draft: Draft) -> set[Request]:
        """Give a block to each; who gets none, and who shall give up pages, sits this step out."""
        pools, stalled = self._pools, set[Request]()
        safe = min(self.running.values(), key=urgency)
        needy.sort(key=urgency)
        for number, request in enumerate(needy, 1):
            if request.key not in self.running:
                continue  # it has given up its own pages
            while not pools.grow(request):
                loser = self._loser(safe, stalled) if pools.num_coming < number else None
                if loser is None or loser is request:
                    stalled.add(request)
                    break
                if pools.in_flight(loser):  # its result is wanted: it can be taken next time
                    stalled |= {loser, request}
                    break
                self._preempt(loser, draft)
        return stalled

    def _loser(self, safe: Request, stalled: set[Request]) -> Request | None:
        pools = self._pools
        return victim(
            (r for r in self.running.values() if r is not safe and r not in stalled),
            in_flight=pools.in_flight,
            fits_host=lambda request: pools.space.fits(len(request.blocks)),
            num_freed=lambda request: pools.blocks.num_sole(request.blocks),
        )

    def _preempt(self, request: Request, draft: Draft) -> None:
        del self.running[request.key]
        written = request.written
        order = self._pools.swap_out(request, draft.step)
        if order is None:
            request.lost = written
        else:
            draft.swap_outs.append(order)
            self.swaps_total += 1
            self.swapping.setdefault(draft.step, []).append(request)
        self.queue.put_back(request, draft.now_s)
        self.preemptions_total += 1

    def _admit(self, draft: Draft) -> None:
        admitted: list[Entry] = []
        passed: list[Entry] = []
        for entry in self.queue.in_order(draft.now_s):
            if draft.budget <= 0 or not self._pools.slots.num_free:
                break
            if entry.rank == _BATCH and any(e.rank == _INTERACTIVE for e in passed):
                break
            if not entry.request.suspect and self._open(entry.request, draft):
                admitted.append(entry)
                for earlier in passed:
                    earlier.bypassed += 1
            else:
                passed.append(entry)
            if len(passed) > BYPASS_MAX or any(e.bypassed >= BYPASS_MAX for e in passed):
                break
        for entry in admitted:
            self._admitted(entry)

    def _admitted(self, entry: Entry) -> None:
        self.queue.admit(entry)
        self.running[entry.request.key] = entry.request

    def _open(self, request: Request, draft: Draft) -> bool:
        """Give pages to a request and compute its first rows; False if it does not fit now."""
        pools = self._pools
        if pools.in_flight(request):
            return False  # it is being swapped out
        hit = Hit() if request.swapped else pools.hit(request)
        spare = self._spare_blocks if self.running else 0
        if pools.num_needed(request, hit) + spare > pools.blocks.num_free:
            return False
        if request.swapped:
            draft.swap_ins.append(pools.swap_in(request, draft.step))
        else:
            pools.open(request, hit)
            if hit.slot:
                draft.fills.append(SlotFill(request.slot, hit.slot))
            elif hit.length and hit.anchored:
                draft.loads.append(pools.load(request, hit, draft.step))
            self.recomputed_tokens_total += max(0, request.lost - hit.length)
            request.lost = 0
            if request.cached is None:
                request.cached = hit.length
                self.query_tokens_total += len(request.generation.prompt)
                cached = min(hit.length, len(request.generation.prompt))
                self.hit_tokens_total += cached
                self.resumed_total += bool(request.generation.forced)
                self.snapshots_total += bool(hit.slot)
                for tier in TIERS if request.brought else ():
                    tokens = brought(request, cached, self._limits.grain, tier)
                    self.brought_tokens_total[tier] += tokens
        self._compute(request, cut(request, draft.budget), draft)
        return True

    def _compute(self, request: Request, count: int, draft: Draft) -> None:
        start = request.launched
        end = start + count
        known = len(request.tokens)
        draft.pieces.append(
            Piece(
                request,
                start,
                count,
                end >= known,
                request.blocks,
                request.slot,
                end > known,
                request.floor,
                request.encoder_floor,
                min(max(request.replay_end - start, 0), count),
            )
        )
        draft.budget -= count
        request.launched = end
        request.last_step = draft.step
        if request.chain is not None and not end % self._limits.grain:
            save = self._pools.save(request, end, draft.step)
            if save is not None:
                draft.saves.append(save)
            snapshot = self._pools.snapshot(request, end, draft.step)
            if snapshot is not None:
                draft.snapshots.append(snapshot)
