"""Pins have an owner, a reason and a deadline."""

from diptych.core.ids import BlockHash
from diptych.kvcache_store.pins import LONGEST_S, Pins

ONE, TWO, THREE = (BlockHash(bytes([i]) * 16) for i in range(3))


def test_a_part_is_pinned_until_its_last_pin_is_released() -> None:
    pins = Pins()
    first = pins.hold([ONE, TWO], "a", "lookup", 100.0, 5.0)
    second = pins.hold([TWO], "b", "move", 100.0, 5.0)
    assert pins.is_pinned([THREE, TWO])
    assert pins.release(first)
    assert not pins.is_pinned([ONE])
    assert pins.is_pinned([TWO])
    assert pins.release(second)
    assert not pins.release(second)  # twice is once
    assert not pins.is_pinned([ONE, TWO, THREE])
    assert len(pins) == 0


def test_a_pin_of_nothing_or_for_no_time_is_none() -> None:
    pins = Pins()
    assert pins.hold([], "a", "lookup", 0.0, 5.0) == 0
    assert pins.hold([ONE], "a", "lookup", 0.0, 0.0) == 0
    assert len(pins) == 0


def test_nobody_pins_for_ever() -> None:
    pins = Pins()
    pins.hold([ONE], "a", "lookup", 5.0, 10**9)
    (pin,) = pins.all()
    assert (pin.owner, pin.reason, pin.until_s) == ("a", "lookup", 5.0 + LONGEST_S)


def test_a_pin_that_outlived_twice_its_lease_is_a_leak() -> None:
    pins = Pins()
    pins.hold([ONE], "a", "lookup", 0.0, 10.0)
    (pin,) = pins.all()
    assert not pin.is_leaked(19.0)
    assert pin.is_leaked(21.0)
