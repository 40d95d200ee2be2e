"""F16: in what order whatever a store says is taken, and what is a gap."""

import random

import pytest

from diptych.core.errors import Broken
from diptych.core.ids import BlockHash
from diptych.kvcache_store.client import Heard, News, Tier
from diptych.router.store_news import GAP, Cursor

LIFE = 7


def news(seq: int, *, life: int = LIFE, first: bool = False, last: bool = True) -> News:
    name = BlockHash(seq.to_bytes(16, "little"))
    return News(Heard(life, seq), Tier.MEMORY, True, (name,), is_snapshot=first, is_last=last)


def test_a_snapshot_is_heard_when_its_last_page_was() -> None:
    cursor = Cursor()
    assert cursor.takes(news(40, first=True, last=False))
    assert cursor.takes(news(40, last=False))
    assert cursor.heard == Heard()  # a stream that broke now would begin anew
    assert cursor.takes(news(40))
    assert cursor.heard == Heard(LIFE, 40)
    assert cursor.takes(news(41))


def test_f16_what_comes_twice_is_taken_once_and_what_is_missing_is_said() -> None:
    cursor = Cursor(Heard(LIFE, 4))
    assert [cursor.takes(news(seq)) for seq in (4, 5, 5, 3, 6)] == [False, True, False, False, True]
    with pytest.raises(Broken) as caught:
        cursor.takes(news(8))
    assert caught.value.code == GAP
    assert cursor.heard == Heard(LIFE, 6)  # from there it is asked again
    assert [cursor.takes(news(seq)) for seq in (7, 8)] == [True, True]


def test_f16_news_of_another_life_need_its_snapshot_first() -> None:
    cursor = Cursor(Heard(LIFE, 4))
    with pytest.raises(Broken):
        cursor.takes(news(5, life=8))
    assert cursor.takes(news(5, life=8, first=True))
    assert cursor.takes(news(6, life=8))


def test_f16_however_a_channel_drops_doubles_and_swaps_each_change_counts_once_in_order() -> None:
    for seed in range(50):
        draw, cursor, taken = random.Random(seed), Cursor(Heard(LIFE, 0)), list[int]()
        while len(taken) < 20:
            coming = list(range(cursor.heard.seq + 1, 21))  # a new stream, from the cursor on
            spoilt = [n for n in coming if draw.random() > 0.2 for _ in range(draw.randint(1, 2))]
            if draw.random() < 0.3:
                spoilt.reverse()
            for seq in spoilt:
                try:
                    taken += [seq] if cursor.takes(news(seq)) else []
                except Broken:
                    break
        assert taken == list(range(1, 21))
