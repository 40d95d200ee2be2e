"""How long a row of a prompt takes here: what loading from the tier is weighed against."""

from diptych.engine.loading import Rates
from diptych.engine.scheduler import Plan
from diptych.engine.trace import Observer, Part

_MIN_ROWS = 16  # of prompts, for a step to say anything about a row


class Pace:
    """An `Observer` that measures steps with prompts, and tells another one everything."""

    def __init__(self, rates: Rates, observer: Observer | None) -> None:
        self._rates = rates
        self._observer = observer
        self._rows: dict[int, int] = {}  # of prompts, by step

    def planned(self, plan: Plan) -> None:
        rows = sum(piece.count for piece in plan.pieces if piece.count > 1)
        if rows >= _MIN_ROWS:
            self._rows[plan.step] = rows
        if self._observer is not None:
            self._observer.planned(plan)

    def took(self, part: Part, step: int, began_s: float, ended_s: float) -> None:
        if part is Part.FORWARD and (rows := self._rows.pop(step, 0)):
            self._rates.computed(rows, ended_s - began_s)
        if self._observer is not None:
            self._observer.took(part, step, began_s, ended_s)
