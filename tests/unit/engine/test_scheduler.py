from diptych.engine.requests import Request
from diptych.engine.scheduler import Choice, Limits, Piece, choose

from .conftest import make_generation, make_request

LIMITS = Limits(grain=8, max_batch_tokens=16)


def prompt(length: int, max_new: int = 4) -> Request:
    return make_request(make_generation(prompt_len=length, max_new=max_new))


def decoding(length: int) -> Request:
    request = prompt(length)
    request.written = request.launched = length - 1
    return request


def shape(chosen: Choice) -> list[tuple[int, int]]:
    return [(request.launched, count) for request, count in chosen.rows]


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert choose([], [], 9, 9, LIMITS) == Choice()


def test_sequences_that_wait_for_one_row_go_before_older_prompts() -> None:
    chosen = choose([prompt(40), decoding(6), decoding(9)], [], 9, 9, LIMITS)
    assert shape(chosen) == [(5, 1), (8, 1), (0, 14)]


def test_a_long_prompt_is_cut_to_the_budget_and_goes_on_from_there() -> None:
    request = prompt(40)
    request.written = request.launched = 14
    assert shape(choose([request], [prompt(3)], 9, 9, LIMITS)) == [(14, 16)]


def test_several_prompts_share_a_step() -> None:
    chosen = choose([], [prompt(5), prompt(6), prompt(7), prompt(8)], 99, 9, LIMITS)
    assert shape(chosen) == [(0, 5), (0, 6), (0, 5)]
    assert chosen.admit == 3


def test_a_piece_samples_only_if_it_ends_its_sequence() -> None:
    request = prompt(20)
    assert not Piece.of(request, 0, 16).samples
    assert Piece.of(request, 16, 4).samples and Piece.of(request, 16, 4).ends_prompt


def test_a_decode_row_does_not_end_a_prompt() -> None:
    request = prompt(4)
    request.tokens.append(9)
    assert Piece.of(request, 4, 1).samples and not Piece.of(request, 4, 1).ends_prompt


def test_admission_needs_blocks_for_everything_the_request_may_write() -> None:
    # 5 + 12 - 1 positions take two blocks of 8; one more token would take three
    assert choose([], [prompt(5, max_new=12)], 2, 1, LIMITS).admit == 1
    assert choose([], [prompt(5, max_new=13)], 2, 1, LIMITS).admit == 0


def test_the_first_that_does_not_fit_holds_back_those_behind_it() -> None:
    assert choose([], [prompt(3), prompt(90), prompt(3)], 5, 9, LIMITS).admit == 1


def test_without_a_slot_nobody_is_admitted() -> None:
    assert choose([], [prompt(3)], 9, 0, LIMITS) == Choice()


def test_planning_changes_nothing() -> None:
    running, waiting = [decoding(6), prompt(40)], [prompt(3)]
    before = [
        (r.written, list(r.tokens), r.blocks, r.slot, r.launched) for r in (*running, *waiting)
    ]
    assert choose(running, waiting, 9, 9, LIMITS) == choose(running, waiting, 9, 9, LIMITS)
    assert before == [
        (r.written, r.tokens, r.blocks, r.slot, r.launched) for r in (*running, *waiting)
    ]
