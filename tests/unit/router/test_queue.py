"""The router's queue against a plain model of it."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.router.queue import AGEING_S, BATCH, NORMAL, URGENT, FairQueue, Queue, Waiting

operations = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 20), st.integers(0, 50), st.integers(0, 50)),
        st.tuples(st.just("remove"), st.integers(0, 20), st.just(0), st.just(0)),
        st.tuples(st.just("expire"), st.just(0), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None)  # a busy machine is no error
@given(operations)
def test_a_queue_behaves_like_a_sorted_list(steps: list[tuple[str, int, int, int]]) -> None:
    queue = Queue(limit=8)
    model: dict[int, Waiting] = {}
    for name, lease, time_s, patience_s in steps:
        if name == "push" and lease not in model and not queue.is_full:
            model[lease] = Waiting(time_s, lease, time_s + patience_s)
            queue.push(model[lease])
        elif name == "remove":
            model.pop(lease, None)
            queue.remove(lease)
        elif name == "expire":
            late = queue.expire(time_s)
            assert {w.lease for w in late} == {
                w.lease for w in model.values() if w.deadline_s <= time_s
            }
            for waiting in late:
                del model[waiting.lease]
        expected = sorted(model.values())
        assert list(queue) == expected
        assert len(queue) == len(model)
        assert queue.is_full == (len(model) >= 8)
        assert queue.next_deadline_s() == min((w.deadline_s for w in expected), default=None)
        for ahead, waiting in enumerate(expected):
            assert queue.ahead_of(waiting.lease) == ahead


def test_a_lease_pushed_again_with_another_deadline_expires_by_the_new_one() -> None:
    queue = Queue(limit=2)
    queue.push(Waiting(0, 1, 5))
    queue.remove(1)
    queue.push(Waiting(0, 1, 9))
    assert queue.expire(8) == []
    assert [w.lease for w in queue.expire(9)] == [1]


def waiting(lease: int, tenant: str = "", arrived_s: float = 0.0, **fields: float) -> Waiting:
    level = int(fields.get("level", NORMAL))
    return Waiting(arrived_s, lease, 1000.0, level, tenant, fields.get("cost_ms", 10.0))


def order(queue: FairQueue) -> list[int]:
    """The leases in the order in which they would be served."""
    served = []
    while (first := next(iter(queue), None)) is not None:
        served.append(first.lease)
        queue.serve(first.lease)
    return served


fair_steps = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "serve", "remove", "age"]),
        st.integers(0, 30),
        st.sampled_from("abc"),
        st.integers(0, 2),
        st.integers(1, 50),
    ),
    max_size=80,
)


@settings(deadline=None)  # a busy machine is no error
@given(fair_steps)
def test_a_fair_queue_loses_nobody_and_keeps_a_tenants_order(
    steps: list[tuple[str, int, str, int, int]],
) -> None:
    queue = FairQueue(limit=20)
    model: dict[int, Waiting] = {}
    now_s = 0.0
    for name, lease, tenant, level, cost_ms in steps:
        now_s += 1.0
        if name == "push" and lease not in model and not queue.is_full:
            model[lease] = Waiting(now_s, lease, now_s + 500, level, tenant, float(cost_ms))
            queue.push(model[lease])
        elif name == "serve" and (first := next(iter(queue), None)) is not None:
            queue.serve(first.lease)
            del model[first.lease]
        elif name == "remove":
            queue.remove(lease)
            model.pop(lease, None)
        elif name == "age":
            now_s += 20.0
            queue.age(now_s)
        listed = list(queue)
        assert sorted(listed) == sorted(model.values())
        assert len(queue) == len(model)
        for one, two in pairwise(listed):
            if one.tenant == two.tenant and one.level == two.level:
                assert one.arrived_s < two.arrived_s
        for ahead, each in enumerate(listed):
            assert queue.ahead_of(each.lease) == ahead
            assert queue.ahead_ms(each.lease) == sum(w.cost_ms for w in listed[:ahead])


def test_a_tenant_with_a_hundred_requests_does_not_hold_up_one_with_two() -> None:
    queue = FairQueue(limit=200)
    for lease in range(100):
        queue.push(waiting(lease, "many"))
    queue.push(waiting(100, "few", arrived_s=1.0))
    queue.push(waiting(101, "few", arrived_s=2.0))
    served = order(queue)
    assert served.index(100) <= 2
    assert served.index(101) <= 4


@settings(deadline=None)  # a busy machine is no error
@given(st.lists(st.integers(1, 100), min_size=20, max_size=60))
def test_tenants_get_equal_milliseconds_whatever_their_requests_cost(costs: list[int]) -> None:
    queue = FairQueue(limit=1000)
    for lease, cost_ms in enumerate(costs):
        queue.push(waiting(2 * lease, "a", cost_ms=float(cost_ms)))
        queue.push(waiting(2 * lease + 1, "b", cost_ms=100.0))
    got = {"a": 0.0, "b": 0.0}
    for _ in range(len(costs)):
        first = next(iter(queue))
        queue.serve(first.lease)
        got[first.tenant] += first.cost_ms
        if "a" in {w.tenant for w in queue}:  # both are still waiting
            assert abs(got["a"] - got["b"]) <= 200.0  # a request of each


def test_who_comes_back_after_a_pause_has_saved_nothing_up() -> None:
    queue = FairQueue(limit=100)
    queue.push(waiting(0, "a"))
    assert order(queue) == [0]
    for lease in range(1, 11):
        queue.push(waiting(lease, "b"))
    for _ in range(5):
        queue.serve(next(iter(queue)).lease)
    for lease in range(20, 25):
        queue.push(waiting(lease, "a", arrived_s=5.0))
    served = order(queue)
    turns = [lease >= 20 for lease in served]
    assert turns[:8].count(True) in (3, 4, 5)  # in turns, and not all of a's first


def test_the_urgent_go_first_and_who_waited_too_long_for_its_class_joins_them() -> None:
    queue = FairQueue(limit=10)
    queue.push(waiting(1, level=BATCH))
    queue.push(waiting(2, level=NORMAL))
    queue.push(waiting(3, level=URGENT, arrived_s=20.0))
    assert [w.lease for w in queue] == [3, 2, 1]
    queue.age(AGEING_S[NORMAL])
    queue.push(waiting(4, level=NORMAL, arrived_s=31.0))
    assert [w.lease for w in queue] == [2, 3, 4, 1]
    queue.age(AGEING_S[BATCH] - 1)
    assert [w.lease for w in queue] == [2, 3, 4, 1]  # 4 may wait until 61 s
    queue.age(AGEING_S[BATCH])
    assert [w.lease for w in queue][-1] == 1
    queue.age(AGEING_S[BATCH] + AGEING_S[NORMAL])
    assert [w.lease for w in queue] == [1, 2, 3, 4]


def test_tenants_that_left_are_forgotten() -> None:
    queue = FairQueue(limit=4)
    for number in range(50):
        queue.push(waiting(number, f"tenant {number}", cost_ms=1.0))
        queue.serve(number)
    assert len(queue._levels[NORMAL].shares) <= 2 * queue.limit + 1
