"""The arithmetic of rates, against an exact bucket."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from diptych.gateway.tenancy.meters import MINUTE_US, Rate
from diptych.testing.histories import EXACT_LIMITS

STEPS = st.lists(
    st.tuples(st.integers(0, 40_000_000), st.integers(1, 70), st.integers(0, 90)), max_size=60
)


class Bucket:
    """Full at the start; drips in evenly; exact."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = Fraction(limit)

    def drip(self, us: int) -> None:
        self.left = min(Fraction(self.limit), self.left + Fraction(us * self.limit, MINUTE_US))


@given(st.sampled_from(EXACT_LIMITS), STEPS)
def test_a_rate_decides_as_an_exact_bucket_does(
    limit: int, steps: list[tuple[int, int, int]]
) -> None:
    rate, bucket, now_us, full_at_us = Rate("r", limit), Bucket(limit), 10**15, 0
    for passed_us, units, used in steps:
        now_us += passed_us
        bucket.drip(passed_us)
        assert rate.remaining(full_at_us, now_us) == max(0, int(bucket.left))
        wait_us = rate.wait_us(full_at_us, now_us, units)
        assert (wait_us == 0) == (bucket.left >= units)
        if wait_us:
            assert bucket.left + Fraction(wait_us * limit, MINUTE_US) == units
            continue
        # Taken, and settled at once with another amount: a refund, or a debt.
        full_at_us = max(full_at_us, now_us) + rate.cost_us(units)
        bucket.left -= units
        full_at_us += rate.cost_us(used) - rate.cost_us(units)
        bucket.left = min(Fraction(limit), bucket.left + units - used)


@given(st.integers(1, 10**8), st.integers(1, 10**7))
def test_a_full_minute_may_come_at_once_and_not_a_unit_more(limit: int, now_us: int) -> None:
    rate = Rate("r", limit)
    assert rate.wait_us(0, now_us, limit) == 0
    assert rate.can_ever(limit)
    assert rate.remaining(0, now_us) == limit or limit > MINUTE_US
    assert not rate.can_ever(limit + max(1, limit // 1000))


@given(st.integers(1, 10**6), st.integers(1, 500))
def test_whoever_waits_as_told_is_let_in(limit: int, units: int) -> None:
    rate = Rate("r", max(limit, units))
    full_at_us = rate.cost_us(rate.limit)  # everything is used at 0
    wait_us = rate.wait_us(full_at_us, 0, units)
    assert wait_us > 0
    assert rate.wait_us(full_at_us, wait_us, units) == 0
    assert rate.wait_us(full_at_us, wait_us - 1, units) > 0
