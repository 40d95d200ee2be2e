"""What the router has learned: costs of workers, lengths of outputs, how true the index is.

Pure but for its own state. Knows no clock.
"""

from collections import OrderedDict
from dataclasses import dataclass

from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Role
from diptych.router.costs import DEFAULTS, Costs
from diptych.router.fitting import Fit, Sample
from diptych.router.messages import Load

EXPECTED_NEW = 128.0
NEW_WEIGHT = 0.05  # of the newest output in the mean of its tenant and class
GROUPS_LIMIT = 1024
TRUSTED_ACCURACY = 0.7
ACCURACY_MEMORY = 0.9  # what is left of older tokens when a lot of new ones came
ACCURACY_LOT = 4096  # tokens expected
ACCURACY_LEAST = 2048  # tokens expected before anything is concluded


@dataclass(slots=True)
class Truth:
    """Of one worker: prompt tokens that the index expected in its cache, and that were there."""

    expected: float = 0.0
    real: float = 0.0
    fresh: float = 0.0  # expected since older ones were last discounted

    @property
    def accuracy(self) -> float | None:
        """None while too little is known."""
        if self.expected < ACCURACY_LEAST:
            return None
        return min(1.0, self.real / self.expected)

    def saw(self, expected: float, real: float) -> None:
        self.expected += expected
        self.real += real
        self.fresh += expected
        while self.fresh >= ACCURACY_LOT:
            self.fresh -= ACCURACY_LOT
            self.expected *= ACCURACY_MEMORY
            self.real *= ACCURACY_MEMORY


class Estimates:
    """Everything that is learned while serving."""

    def __init__(self) -> None:
        self._fits: dict[WorkerId, Fit] = {}
        self._loads: dict[WorkerId, tuple[Incarnation, Load]] = {}
        self._starts: dict[Role, Costs] = {}  # of a worker that has not reported yet
        self._new: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._truths: dict[WorkerId, Truth] = {}

    def costs(self, worker: WorkerId, role: Role) -> Costs:
        fit = self._fits.get(worker)
        return fit.costs if fit is not None else self._starts.get(role, DEFAULTS)

    def reported(self, worker: WorkerId, role: Role, life: Incarnation, load: Load) -> None:
        """Learn from what changed since a worker's last report."""
        before = self._loads.get(worker)
        self._loads[worker] = (life, load)
        if before is None or before[0] != life:
            return
        sample = Sample.between(before[1], load)
        if sample is not None:
            fit = self._fits.get(worker)
            if fit is None:
                fit = self._fits[worker] = Fit(self._starts.get(role, DEFAULTS))
            fit.observe(sample)
            self._starts[role] = fit.costs
        hit = load.hit_tokens_total - before[1].hit_tokens_total
        if hit > 0:
            self._truth(worker).saw(0.0, hit)

    def expects_hit(self, worker: WorkerId, tokens: int) -> None:
        """A prompt was placed for what the index says of it."""
        if tokens > 0:
            self._truth(worker).saw(tokens, 0.0)

    def accuracy(self, worker: WorkerId) -> float | None:
        truth = self._truths.get(worker)
        return truth.accuracy if truth is not None else None

    def is_trusted(self, worker: WorkerId) -> bool:
        """Whether what the index says of a worker may count."""
        accuracy = self.accuracy(worker)
        return accuracy is None or accuracy >= TRUSTED_ACCURACY

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone; its coefficients stay with its name."""
        self._loads.pop(worker, None)
        self._truths.pop(worker, None)

    def ended(self, tenant: str, name: str, new_tokens: int) -> None:
        """An output of a tenant and class is over."""
        group = (tenant, name)
        mean = self._new.pop(group, EXPECTED_NEW)
        self._new[group] = mean + NEW_WEIGHT * (new_tokens - mean)
        if len(self._new) > GROUPS_LIMIT:
            self._new.popitem(last=False)

    def expected_new(self, tenant: str, name: str) -> int:
        return round(self._new.get((tenant, name), EXPECTED_NEW))

    def _truth(self, worker: WorkerId) -> Truth:
        return self._truths.setdefault(worker, Truth())
