import pytest

from diptych.engine.prefix_cache import Chain
from diptych.engine.requests import Request
from diptych.engine.scheduler import KEEP_MARGIN, Limits, Piece, Plan, cut, urgency, victim
from diptych.engine.swap import SwapCopy

from .conftest import make_generation, make_request


def prompt(length: int, *, rank: int = 1, order: int = 0, launched: int = 0) -> Request:
    request = make_request(make_generation(f"r{order}", prompt_len=length))
    request.rank, request.order, request.launched = rank, order, launched
    return request


def chosen(
    candidates: list[Request],
    *,
    in_flight: tuple[Request, ...] = (),
    fits_host: tuple[Request, ...] = (),
    num_freed: int = 1,
) -> Request | None:
    return victim(
        candidates,
        in_flight=lambda request: request in in_flight,
        fits_host=lambda request: request in fits_host,
        num_freed=lambda request: num_freed,
    )


def test_a_piece_samples_only_if_it_ends_its_sequence() -> None:
    request = prompt(20)
    assert not Piece.of(request, 0, 16).samples
    assert Piece.of(request, 16, 4).samples and Piece.of(request, 16, 4).ends_prompt


def test_a_decode_row_does_not_end_a_prompt() -> None:
    request = prompt(4)
    request.tokens.append(9)
    assert Piece.of(request, 4, 1).samples and not Piece.of(request, 4, 1).ends_prompt


def test_a_piece_keeps_the_pages_it_was_planned_with() -> None:
    request = prompt(4)
    request.blocks, request.slot = (7, 8), 3
    piece = Piece.of(request, 0, 4)
    request.blocks, request.slot = (), 0
    assert (piece.blocks, piece.slot) == ((7, 8), 3)


def test_a_plan_with_orders_and_no_pieces_is_not_idle() -> None:
    assert Plan().idle
    assert not Plan(swap_outs=(SwapCopy((1,), 1, (0,), 0),)).idle
    assert not Plan((Piece.of(prompt(4), 0, 4),)).idle


def test_a_long_prompt_is_cut_to_the_budget_and_goes_on_from_there() -> None:
    assert cut(prompt(40), 16) == 16
    assert cut(prompt(40, launched=32), 16) == 8


def test_a_chunk_ends_at_the_next_stop() -> None:
    request = prompt(40)
    request.chain = Chain(b"s" * 16, 8, stops=(8, 32))
    assert cut(request, 99) == 8
    request.launched = 8
    assert cut(request, 99) == 24 and cut(request, 5) == 5
    request.launched = 32
    assert cut(request, 99) == 8


@pytest.mark.parametrize(
    ("prompt_len", "replay", "floor"),
    [(500, True, 360), (140, True, 0), (20, True, 0), (500, False, 0)],
)
def test_the_decoder_layers_begin_a_window_and_a_margin_before_the_prompt_ends(
    prompt_len: int, replay: bool, floor: int
) -> None:
    limits = Limits(grain=128, max_batch_tokens=512, window=128, replay=replay)
    assert limits.keep == 128 + KEEP_MARGIN
    assert limits.floor(prompt_len) == floor


def test_the_more_urgent_and_the_older_come_first() -> None:
    requests = [prompt(4, rank=2, order=1), prompt(4, order=3), prompt(4, order=2)]
    assert [r.order for r in sorted(requests, key=urgency)] == [2, 3, 1]


def test_without_candidates_there_is_no_victim() -> None:
    assert chosen([]) is None


def test_the_least_urgent_class_loses_first() -> None:
    cheap, batch = prompt(4, order=2), prompt(99, rank=2, order=1, launched=98)
    assert chosen([cheap, batch], fits_host=(cheap,)) is batch


def test_a_sequence_that_no_step_is_computing_loses_before_one_that_waits_for_its_result() -> None:
    busy, resting = prompt(4, order=1), prompt(99, order=2, launched=98)
    assert chosen([busy, resting], in_flight=(busy,)) is resting


def test_one_that_can_be_swapped_loses_before_one_that_must_be_computed_again() -> None:
    short, swappable = prompt(4, order=1), prompt(99, order=2, launched=98)
    assert chosen([short, swappable], fits_host=(swappable,)) is swappable


def test_the_least_work_for_a_block_is_lost_and_among_equals_the_youngest() -> None:
    long, old, young = prompt(99, order=3, launched=98), prompt(4, order=1), prompt(4, order=2)
    assert chosen([long, old, young]) is young
