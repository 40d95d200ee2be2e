import math
import random

import pytest

from diptych.core.ids import Key
from diptych.core.request import PRIORITIES
from diptych.engine.queue import TENANTS_MAX, Queue
from diptych.engine.requests import Request

from .conftest import make_generation, make_request

LIMITS_S = (math.inf, 30.0, 120.0)


class Line:
    """A queue and the names of those who leave it."""

    def __init__(self) -> None:
        self.queue = Queue(LIMITS_S)
        self.born = 0

    def put(
        self,
        name: str,
        priority: str = "normal",
        tenant: str = "default",
        now_s: float = 0.0,
        prompt_len: int = 5,
        max_new: int = 4,
    ) -> Request:
        generation = make_generation(name, prompt_len, max_new, priority=priority, tenant=tenant)
        request = make_request(generation)
        self.born += 1
        request.order, request.rank = self.born, PRIORITIES.index(priority)
        self.queue.enter(self.queue.arrive(request, now_s))
        return request

    def names(self, now_s: float = 0.0) -> str:
        return "".join(e.request.key.request_id for e in self.queue.in_order(now_s))

    def take(self, now_s: float = 0.0) -> Request:
        entry = next(self.queue.in_order(now_s))
        self.queue.admit(entry)
        return entry.request

    def served(self) -> str:
        return "".join(self.take().key.request_id for _ in range(len(self.queue)))


def test_requests_of_one_tenant_go_in_order_of_arrival() -> None:
    line = Line()
    for name, length in (("a", 90), ("b", 1), ("c", 30)):
        line.put(name, prompt_len=length)
    assert line.served() == "abc"


def test_a_more_urgent_class_goes_first() -> None:
    line = Line()
    for name, priority in (("a", "batch"), ("b", "normal"), ("c", "interactive"), ("d", "normal")):
        line.put(name, priority)
    assert line.served() == "cbda"


def test_a_tenant_with_many_requests_delays_another_by_one() -> None:
    line = Line()
    for name in "abcdef":
        line.put(name, tenant="greedy")
    assert line.take().key.request_id == "a"
    line.put("x", tenant="modest")
    line.put("y", tenant="modest")
    assert line.served() == "xbycdef"


def test_tenants_share_by_work_and_not_by_requests() -> None:
    line = Line()
    for name in "abcd":
        line.put(name, tenant="short", prompt_len=20, max_new=1)
    for name in "xy":
        line.put(name, tenant="long", prompt_len=70, max_new=1)
    assert line.served() == "axbcdy"


def test_waiting_makes_urgent() -> None:
    line = Line()
    line.put("b", "batch", now_s=0)
    line.put("n", "normal", now_s=100)
    assert line.names(now_s=119) == "nb"
    line.put("m", "normal", now_s=119)
    assert line.names(now_s=121) == "bnm"  # b is normal, and the oldest of them
    line.put("i", "interactive", now_s=121)
    assert line.names(now_s=129) == "ibnm"
    line.put("j", "interactive", now_s=131)
    assert line.names(now_s=131) == "nijbm"  # n is interactive where that class is now
    assert line.names(now_s=150) == "nmijb"
    assert line.names(now_s=152) == "bnmij"


def test_who_was_preempted_goes_before_the_new_ones_of_its_class() -> None:
    line = Line()
    first = line.put("a")
    line.put("b")
    line.put("i", "interactive")
    assert line.take().key.request_id == "i"
    line.take()
    line.queue.put_back(first, 0.0)
    assert line.names() == "ab"


def test_a_request_leaves_from_anywhere() -> None:
    line = Line()
    for name in "abc":
        line.put(name)
    assert line.queue.pop(Key("b", 1)) is not None and line.queue.pop(Key("b", 1)) is None
    assert line.names() == "ac" and Key("b", 1) not in line.queue and len(line.queue) == 2


def test_no_end_of_tenants_is_remembered() -> None:
    line = Line()
    line.put("r0", tenant="t0")
    for number in range(1, 3 * TENANTS_MAX):  # there is always somebody in line
        line.put(f"r{number}", tenant=f"t{number}")
        line.take()
    lane = line.queue._lanes[PRIORITIES.index("normal")]
    assert len(lane._ends) <= TENANTS_MAX


@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_keeps_order_inside_a_tenant_and_leaves_nobody_behind(seed: int) -> None:
    rng, line, now_s = random.Random(seed), Line(), 0.0
    arrived: dict[str, float] = {}
    for number in range(3000):
        now_s += rng.expovariate(1.0)
        name = f"r{number}"
        line.put(name, rng.choice(PRIORITIES), rng.choice("abc"), now_s)
        arrived[name] = now_s
        while len(line.queue) > 60:
            request = line.take(now_s)
            first = min(
                (
                    r
                    for r in line.queue
                    if (r.generation.tenant, r.generation.priority)
                    == (request.generation.tenant, request.generation.priority)
                ),
                key=lambda r: r.order,
                default=None,
            )
            assert first is None or first.order > request.order
            waited_s = now_s - arrived[request.key.request_id]
            assert waited_s < sum(limit for limit in LIMITS_S if limit < math.inf) + 70
