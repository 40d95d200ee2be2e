"""What the values say of themselves."""

import pytest

from diptych.core.phases import Role, WorkerState
from diptych.router.messages import Join, Load, Member


@pytest.mark.parametrize(
    ("load", "is_ready", "leases", "state"),
    [
        (Load(), False, 0, WorkerState.WARMING),
        (Load(), True, 0, WorkerState.READY),
        (Load(running=3), True, 3, WorkerState.READY),
        (Load(draining=True, running=1), False, 0, WorkerState.DRAINING),
        (Load(draining=True, tickets=1), False, 0, WorkerState.DRAINING),
        (Load(draining=True, streams=1), False, 0, WorkerState.DRAINING),
        (Load(draining=True), False, 1, WorkerState.DRAINING),
        (Load(draining=True), False, 0, WorkerState.DRAINED),
    ],
)
def test_a_member_says_where_it_is_in_its_life(
    load: Load, is_ready: bool, leases: int, state: WorkerState
) -> None:
    member = Member(Join("decode-1", Role.DECODE), load, is_ready, "", leases)
    assert member.state is state
