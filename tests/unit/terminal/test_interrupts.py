"""Interrupts that wait."""

import signal

import pytest

from diptych.terminal.interrupts import held_back


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert done == ["the rest"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_in_the_block_comes_first() -> None:
    with pytest.raises(ValueError, match="ours"), held_back():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("ours")


def test_without_one_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGINT)
    with held_back():
        pass
    assert signal.getsignal(signal.SIGINT) is before
