"""Which workers come and go when a pool changes its size, and orders that make no sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.errors import BadRequest
from diptych.core.phases import Role
from diptych.supervisor.orders import read_counts
from diptych.supervisor.scaling import changes

THERE = {Role.PREFILL: ["prefill-1", "prefill-2"], Role.DECODE: ["decode-1", "decode-3"]}


def test_the_lowest_free_numbers_come_and_the_highest_go() -> None:
    todo = changes(THERE, {Role.PREFILL: 1, Role.DECODE: 4})
    assert todo.add == ((Role.DECODE, 2), (Role.DECODE, 4))
    assert todo.remove == ("prefill-2",)


def test_a_pool_that_is_not_named_stays() -> None:
    todo = changes(THERE, {Role.DECODE: 2})
    assert (todo.add, todo.remove) == ((), ())


@given(
    there=st.sets(st.integers(1, 40), min_size=1, max_size=12),
    wanted=st.integers(1, 20),
)
def test_a_pool_has_the_size_that_was_wanted_and_every_name_once(
    there: set[int], wanted: int
) -> None:
    names = {f"decode-{n}" for n in there}
    todo = changes({Role.DECODE: sorted(names)}, {Role.DECODE: wanted})
    added = [f"{role}-{n}" for role, n in todo.add]
    after = [*(names - set(todo.remove)), *added]
    assert len(after) == len(set(after)) == wanted
    assert not (todo.add and todo.remove)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({Role.DECODE: 0}, "decode: expected at least 1"), ({Role.HYBRID: 2}, "has prefill, decode")],
)
def test_what_would_leave_no_path_is_refused(wanted: dict[Role, int], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        changes(THERE, wanted)


def test_wishes_are_read_from_the_command_line() -> None:
    assert read_counts(["prefill=2", "decode=3"]) == {"prefill": 2, "decode": 3}
    for wish in ("prefill", "prefill=", "prefill=-1", "router=2", "decode=two", "decode=²"):
        with pytest.raises(BadRequest, match="expected ROLE=N"):
            read_counts([wish])
