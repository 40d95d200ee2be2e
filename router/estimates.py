"""What the router has learned: costs of workers, lengths of outputs, how true the index is.

Pure but for its own state. Knows no clock.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Role
from diptych.router.costs import DEFAULTS, Costs
from diptych.router.fitting import Fit, Sample
from diptych.router.ledger import Expected
from diptych.router.messages import Load

PACE_WEIGHT = 0.05  # of the newest report in a worker's pace
SAME_PACE = 0.15  # closer than this to its role, a worker is as fast as the others
MOST_PACE = 10.0
EXPECTED_NEW = 128.0
NEW_WEIGHT = 0.05  # of the newest output in the mean of its tenant and class
GROUPS_LIMIT = 1024
TRUSTED_ACCURACY = 0.7
ACCURACY_MEMORY = 0.99  # of older prompts with each new one; reports lag behind by a few
ACCURACY_LEAST = 20  # prompts before anything is concluded
TIER_WEIGHT = 0.1  # of the loads of a report in the tier's pace
TIER_BOUND = 30.0  # the tier is at most so many times slower, or faster, than shipped


@dataclass(slots=True)
class Truth:
    """Of one worker: prompt tokens that the index expected in its cache, and that were there."""

    expected: float = 0.0
    real: float = 0.0
    prompts: int = 0

    @property
    def accuracy(self) -> float | None:
        """None while too little is known."""
        if self.prompts < ACCURACY_LEAST:
            return None
        return min(1.0, self.real / self.expected)

    def expects(self, new: Expected) -> None:
        memory = ACCURACY_MEMORY**new.prompts
        self.prompts += new.prompts
        self.expected = memory * self.expected + new.tokens
        self.real *= memory


class Estimates:
    """Everything that is learned while serving.

    Workers of a role share their coefficients, and each has a pace of its own: were they fitted
    one by one, a worker that got long prompts for a while would look cheap for long ones.
    """

    def __init__(self) -> None:
        self._fits: dict[Role, Fit] = {}
        self._costs: dict[Role, Costs] = {}
        self._paces: dict[WorkerId, float] = {}
        self._loads: dict[WorkerId, tuple[Incarnation, Load]] = {}
        self._new: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._truths: dict[WorkerId, Truth] = {}
        self.expected: dict[WorkerId, Expected] = {}  # by this router, since it lives

    def costs(self, worker: WorkerId, role: Role) -> Costs:
        costs = self.role_costs(role)
        pace = self._paces.get(worker, 1.0)
        return costs if abs(pace - 1) < SAME_PACE else costs.at_pace(pace)

    def role_costs(self, role: Role) -> Costs:
        """What workers of a role have in common."""
        return self._costs.get(role, DEFAULTS)

    def reported(self, worker: WorkerId, role: Role, life: Incarnation, load: Load) -> None:
        """Learn from what changed since a worker's last report."""
        before = self._loads.get(worker)
        self._loads[worker] = (life, load)
        if before is None or before[0] != life:
            return
        sample = Sample.between(before[1], load)
        if sample is not None:
            fit = self._fits.setdefault(role, Fit())
            ratio = sample.busy_ms / max(1e-6, sample.expected_ms(fit.costs))
            pace = self._paces.get(worker, 1.0)
            pace += PACE_WEIGHT * (ratio - pace)
            self._paces[worker] = min(MOST_PACE, max(1 / MOST_PACE, pace))
            fit.observe(sample)
            tier_pace = self._costs.get(role, DEFAULTS).tier_pace
            self._costs[role] = replace(fit.costs, tier_pace=tier_pace)
        self._loaded(role, before[1], load)
        hit = _own_hits(load) - _own_hits(before[1])
        if hit > 0:
            self._truth(worker).real += hit

    def expects_hit(self, worker: WorkerId, tokens: int) -> None:
        """A prompt was placed for what the index says of it."""
        if tokens > 0:
            before = self.expected.get(worker, Expected())
            self.expected[worker] = Expected(before.prompts + 1, before.tokens + tokens)
            self._truth(worker).expects(Expected(1, tokens))

    def others_expect(self, worker: WorkerId, new: Expected) -> None:
        """Other routers did so: the worker's hits are those of all their prompts."""
        if new.prompts > 0:
            self._truth(worker).expects(new)

    def accuracy(self, worker: WorkerId) -> float | None:
        truth = self._truths.get(worker)
        return truth.accuracy if truth is not None else None

    def is_trusted(self, worker: WorkerId) -> bool:
        """Whether what the index says of a worker may count."""
        accuracy = self.accuracy(worker)
        return accuracy is None or accuracy >= TRUSTED_ACCURACY

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone; what it taught about its role stays."""
        self._loads.pop(worker, None)
        self._paces.pop(worker, None)
        self._truths.pop(worker, None)
        self.expected.pop(worker, None)

    def ended(self, tenant: str, name: str, new_tokens: int) -> None:
        """An output of a tenant and class is over."""
        group = (tenant, name)
        mean = self._new.pop(group, EXPECTED_NEW)
        self._new[group] = mean + NEW_WEIGHT * (new_tokens - mean)
        if len(self._new) > GROUPS_LIMIT:
            self._new.popitem(last=False)

    def expected_new(self, tenant: str, name: str) -> int:
        return round(self._new.get((tenant, name), EXPECTED_NEW))

    def _loaded(self, role: Role, before: Load, after: Load) -> None:
        """How long the tier took for what it brought to a worker, next to what was expected."""
        loads = after.loads_total - before.loads_total
        tokens = after.brought_tokens_total - before.brought_tokens_total
        took_ms = (after.load_us_total - before.load_us_total) / 1000
        if loads <= 0 or tokens < 0 or took_ms <= 0:
            return
        costs = self._costs.get(role, DEFAULTS)
        ratio = took_ms / (costs.fetch_ms * loads + costs.fetch_token_ms * tokens)
        ratio = min(TIER_BOUND, max(1 / TIER_BOUND, ratio))
        pace = costs.tier_pace + TIER_WEIGHT * (ratio - costs.tier_pace)
        self._costs[role] = replace(costs, tier_pace=pace)

    def _truth(self, worker: WorkerId) -> Truth:
        return self._truths.setdefault(worker, Truth())


def _own_hits(load: Load) -> int:
    """What the tier brought says nothing about what the index knows of a worker's pages."""
    return load.hit_tokens_total - load.brought_tokens_total
