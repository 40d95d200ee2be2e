"""Numbers between two bounds, as a grammar over their digits. No exponents: they have no order."""

from decimal import Decimal

from diptych.text.constraints.grammar import EMPTY, NOTHING, Node, Text, alt, chars, repeat, seq
from diptych.text.constraints.json_text import DIGIT, MAX_DIGITS

_LARGEST = 10**MAX_DIGITS - 1
_MAX_FRACTION = 20


def integers(low: int | None, high: int | None) -> Node:
    """Every integer from `low` to `high`, canonical digits, at most 64 of them."""
    low = -_LARGEST if low is None else max(low, -_LARGEST)
    high = _LARGEST if high is None else min(high, _LARGEST)
    options: list[Node] = []
    if low < 0:
        below = _naturals(max(1, -high), -low)
        options.append(seq(Text("-"), below) if below != NOTHING else NOTHING)
    if high >= 0:
        options.append(_naturals(max(0, low), high))
    return alt(*options)


def _naturals(low: int, high: int) -> Node:
    if low > high:
        return NOTHING
    options: list[Node] = []
    if low == 0:
        options.append(Text("0"))
        low = 1
    if low > high:
        return alt(*options)
    shortest, longest = len(str(low)), len(str(high))
    if shortest == longest:
        return alt(*options, _same_length(str(low), str(high)))
    options.append(_same_length(str(low), "9" * shortest))
    if longest - shortest > 1:
        options.append(seq(chars((49, 57)), repeat(DIGIT, shortest, longest - 2)))
    options.append(_same_length("1" + "0" * (longest - 1), str(high)))
    return alt(*options)


def _same_length(low: str, high: str) -> Node:
    """Digit strings of one length between two of them."""
    size = len(low)
    if set(low) == {"0"} and set(high) == {"9"}:
        return repeat(DIGIT, size, size)
    if size == 1:
        return _digits(low, high)
    if low[0] == high[0]:
        return seq(Text(low[0]), _same_length(low[1:], high[1:]))
    first, last = int(low[0]), int(high[0])
    options: list[Node] = []
    if set(low[1:]) != {"0"}:
        options.append(seq(Text(low[0]), _same_length(low[1:], "9" * (size - 1))))
        first += 1
    if set(high[1:]) != {"9"}:
        options.append(seq(Text(high[0]), _same_length("0" * (size - 1), high[1:])))
        last -= 1
    if first <= last:
        options.append(seq(_digits(str(first), str(last)), repeat(DIGIT, size - 1, size - 1)))
    return alt(*options)


def _digits(low: str, high: str) -> Node:
    return Text(low) if low == high else chars((ord(low), ord(high)))


Bound = tuple[Decimal, bool] | None
"""A limit and whether it is itself outside; None is no limit."""


def numbers(low: Bound, high: Bound) -> Node:
    """Every decimal number between the bounds, to 20 digits beyond those of the bound."""
    options: list[Node] = []
    if low is None or low[0] < 0:
        near = (abs(high[0]), high[1]) if high and high[0] <= 0 else (Decimal(0), False)
        found = _positive(near, None if low is None else (abs(low[0]), low[1]))
        options.append(seq(Text("-"), found) if found != NOTHING else NOTHING)
    if high is None or high[0] >= 0:
        options.append(_positive(low if low and low[0] > 0 else _zero(low), high))
    return alt(*options)


def _zero(low: Bound) -> tuple[Decimal, bool]:
    return Decimal(0), low is not None and low == (Decimal(0), True)


def _positive(low: tuple[Decimal, bool], high: Bound) -> Node:
    if high is not None and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return NOTHING
    low_whole, low_part = _split(low[0])
    if high is None:
        return alt(
            _with_fraction(low_whole, (low_part, low[1]), None),
            _any_fraction(_naturals(low_whole + 1, _LARGEST)),
        )
    high_whole, high_part = _split(high[0])
    if low_whole == high_whole:
        return _with_fraction(low_whole, (low_part, low[1]), (high_part, high[1]))
    return alt(
        _with_fraction(low_whole, (low_part, low[1]), None),
        _any_fraction(_naturals(low_whole + 1, high_whole - 1)),
        _with_fraction(high_whole, None, (high_part, high[1])),
    )


def _split(value: Decimal) -> tuple[int, str]:
    whole, _, part = format(value, "f").partition(".")
    return int(whole), part.rstrip("0")


def _any_fraction(whole: Node) -> Node:
    if whole == NOTHING:
        return NOTHING
    return seq(whole, repeat(seq(Text("."), repeat(DIGIT, 1, _MAX_FRACTION)), 0, 1))


Edge = tuple[str, bool] | None
"""Digits still to compare with and whether equality is outside; None once the digits differ."""


def _with_fraction(whole: int, low: Edge, high: Edge) -> Node:
    options: list[Node] = [Text(str(whole))] if _may_end(low, high) else []
    digits = _fraction(low, high, first=True)
    if digits != NOTHING:
        options.append(seq(Text(f"{whole}."), digits))
    return alt(*options)


def _may_end(low: Edge, high: Edge) -> bool:
    """Whether the number may stop here: the missing digits count as zeros."""
    above = low is None or (low[0] == "" and not low[1])
    return above and (high is None or high[0] != "" or not high[1])


def _fraction(low: Edge, high: Edge, *, first: bool) -> Node:
    """Digits after the point (or, not `first`, the rest of them) that stay between the edges."""
    if low is not None and low[0] == "" and not low[1]:
        low = None
    if low is None and high is None:
        return repeat(DIGIT, int(first), _MAX_FRACTION)
    if high is not None and high[0] == "":
        zeros = repeat(Text("0"), int(first), _MAX_FRACTION)
        return zeros if low is None and not high[1] else NOTHING
    if low is not None and low[0] == "":  # strictly above what was written: some digit is not zero
        low = ("0" * len(high[0]) if high else "", True)
        if high is None:
            nonzero = seq(chars((49, 57)), repeat(DIGIT, 0, _MAX_FRACTION))
            return seq(repeat(Text("0"), 0, _MAX_FRACTION), nonzero)
    options: list[Node] = [] if first or not _may_end(low, high) else [EMPTY]
    bottom = int(low[0][0]) if low else 0
    top = int(high[0][0]) if high else 9
    free: list[int] = []
    for digit in range(bottom, top + 1):
        next_low = (low[0][1:], low[1]) if low and digit == bottom else None
        next_high = (high[0][1:], high[1]) if high and digit == top else None
        if next_low is None and next_high is None:
            free.append(digit)
            continue
        rest = _fraction(next_low, next_high, first=False)
        if rest != NOTHING:
            options.append(seq(Text(str(digit)), rest))
    if free:
        rest = repeat(DIGIT, 0, _MAX_FRACTION)
        options.append(seq(_digits(str(free[0]), str(free[-1])), rest))
    return alt(*options)
