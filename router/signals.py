"""The router's state as scaling signals: gathers what the formulas need. Reads only."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from diptych.core.ids import WorkerId
from diptych.core.phases import Role
from diptych.router import scaling
from diptych.router.admission import class_of
from diptych.router.costs import Costs
from diptych.router.demand import Demand
from diptych.router.dispatcher import Dispatcher
from diptych.router.ledger import Entry, Stage
from diptych.router.registry import Record
from diptych.router.scaling import Lateness, Prompts, Rows, Smoothed
from diptych.router.windows import p90
from diptych.telemetry import metrics as m


@dataclass(frozen=True, slots=True)
class Signals:
    """At one moment."""

    desired: dict[Role, int]
    prompts: Prompts
    rows: Rows
    hit_share: float | None  # None: no prompts
    kv_share: float | None  # of the decode workers' blocks, those in use; None: no such workers
    pressures: dict[Role, float] = field(default_factory=dict)


class Scale:
    """Asks the formulas. Keeps only what it smooths."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._smoothed = Smoothed()

    def now(self, now_s: float) -> Signals:
        workers = list(self._dispatcher.chooser.candidates.workers())
        pools: dict[Role, list[Record]] = {}
        for record in workers:
            pools.setdefault(record.join.role, []).append(record)
        hybrids = pools.get(Role.HYBRID, [])
        is_split = Role.PREFILL in pools or Role.DECODE in pools
        computing = pools.get(Role.PREFILL, []) if is_split else hybrids
        decoding = pools.get(Role.DECODE, []) if is_split else hybrids
        prompts, rows = self._prompts(computing, now_s), self._rows(decoding, now_s)
        if is_split:
            desired = scaling.desired(prompts if computing else None, rows if decoding else None)
        else:
            both = scaling.desired_hybrids(prompts, rows) if hybrids else None
            desired = {} if both is None else {Role.HYBRID: both}
        late = self._lateness(computing, decoding, now_s)
        pressures = self._smoothed.update(scaling.pressures(late), now_s)
        if not is_split:
            pressures = {Role.HYBRID: max(pressures.values())} if hybrids else {}
        hit_share = self._dispatcher.demand.hit_share(_roles(computing), now_s)
        num_blocks = sum(record.join.num_blocks for record in decoding)
        kv_share = rows.used_blocks / num_blocks if num_blocks else None
        return Signals(desired, prompts, rows, hit_share, kv_share, pressures)

    def _prompts(self, pool: Sequence[Record], now_s: float) -> Prompts:
        dispatcher, roles = self._dispatcher, _roles(pool)
        demand, ledger = dispatcher.demand, dispatcher.ledger
        if not pool:
            return Prompts()
        hit_share = demand.hit_share(roles, now_s) or 0.0
        standings = [ledger.standing(record.rank.worker_id) for record in pool]
        given = sum(each.own.prompt_tokens + each.shared.prompt_tokens for each in standings)
        waiting = 0.0
        if not dispatcher.is_export_blocked:  # else it is decode that they wait for
            waiting = sum(ledger.entries[w.lease].want.prompt_len for w in dispatcher.prompts)
        role = pool[0].join.role
        rate = (
            demand.prompt_rate(now_s)
            if role is Role.PREFILL
            else demand.prompt_rate_of(_costs(dispatcher, pool), now_s)
        )
        backlog = given + waiting * (1.0 - hit_share)
        return Prompts(demand.arriving(roles, now_s), hit_share, backlog, rate)

    def _rows(self, pool: Sequence[Record], now_s: float) -> Rows:
        dispatcher, roles = self._dispatcher, _roles(pool)
        if not pool:
            return Rows()
        wanted: Counter[float] = Counter()
        for entry in dispatcher.ledger.entries.values():
            if entry.stage is Stage.DECODE or _waits_for_row(entry, dispatcher):
                wanted[class_of(entry.want.priority_class).gap_target_ms] += 1
        foreign = sum(
            dispatcher.ledger.standing(r.rank.worker_id).foreign_rows for r in pool
        )  # of other routers: taken to be normal
        if foreign:
            wanted[class_of("normal").gap_target_ms] += foreign
        return Rows(
            wanted,
            dispatcher.demand.context(roles, now_s),
            dispatcher.demand.per_s(roles, "tokens", now_s),
            sum(max(0, r.join.num_blocks - r.load.free_blocks) for r in pool),
            min(r.join.num_blocks for r in pool),
            min(r.join.num_slots for r in pool),
            _costs(dispatcher, pool),
        )

    def _lateness(
        self, computing: Sequence[Record], decoding: Sequence[Record], now_s: float
    ) -> Lateness:
        dispatcher = self._dispatcher
        demand, ledger = dispatcher.demand, dispatcher.ledger
        queued = 0 if dispatcher.is_export_blocked else len(dispatcher.prompts)
        queued += sum(max(0, ledger.standing(r.rank.worker_id).prompts - 1) for r in computing)
        waited_s = demand.export_blocked.recent(now_s) + demand.slot_wait.recent(now_s)
        return Lateness(demand.lateness(now_s), self._gap(decoding), queued, waited_s)

    def _gap(self, pool: Sequence[Record]) -> float:
        """Of the rows' targets, as far as step times are known."""
        dispatcher = self._dispatcher
        gaps_ms: dict[WorkerId, float] = {}
        for record in pool:
            worker, role = record.rank.worker_id, record.join.role
            standing = dispatcher.ledger.standing(worker)
            costs = dispatcher.estimates.costs(worker, role)
            gaps_ms[worker] = costs.gap_ms(standing.rows, standing.context)
        ratios = [
            gaps_ms[entry.decode] / class_of(entry.want.priority_class).gap_target_ms
            for entry in dispatcher.ledger.entries.values()
            if entry.is_decoding and entry.decode in gaps_ms
        ]
        return p90(ratios) or 0.0


def readings(signals: Signals, demand: Demand, now_s: float) -> Iterator[m.Reading]:
    """As metrics. What cannot be computed is absent."""
    for role, number in signals.desired.items():
        yield m.DESIRED_WORKERS.at(number, role)
    for role, value in signals.pressures.items():
        yield m.SLO_PRESSURE.at(value, role)
    prompts, rows = signals.prompts, signals.rows
    yield m.SCALING_ARRIVING.at(prompts.arriving)
    yield m.SCALING_BACKLOG.at(prompts.backlog)
    if signals.hit_share is not None:
        yield m.SCALING_HITS.at(signals.hit_share)
    if prompts.rate:
        yield m.SCALING_PREFILL_RATE.at(prompts.rate)
    yield m.SCALING_OUTPUT.at(rows.tokens)
    yield m.SCALING_ROWS.at(sum(rows.wanted.values()))
    if rows.num_slots:
        yield m.SCALING_ROWS_FIT.at(scaling.most_rows(rows, class_of("normal").gap_target_ms))
    if signals.kv_share is not None:
        yield m.SCALING_KV.at(signals.kv_share)
    yield m.EXPORT_BLOCKED.at(demand.export_blocked.total(now_s))
    yield m.SLOT_WAIT.at(demand.slot_wait.total(now_s))


def _waits_for_row(entry: Entry, dispatcher: Dispatcher) -> bool:
    is_held_back = entry.stage is Stage.WAITING and dispatcher.is_export_blocked
    return entry.stage is Stage.HANDOFF or is_held_back


def _roles(pool: Iterable[Record]) -> tuple[Role, ...]:
    return tuple({record.join.role: None for record in pool})


def _costs(dispatcher: Dispatcher, pool: Sequence[Record]) -> Costs:
    """Of the role; a pool's workers are alike."""
    return dispatcher.estimates.role_costs(pool[0].join.role)
