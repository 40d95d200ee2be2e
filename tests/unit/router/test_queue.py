"""The router's queue against a plain model of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.router.queue import Queue, Waiting

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
