import pytest

from diptych.core.errors import BadRequest
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.engine.port import Pages
from diptych.engine.requests import capacity, check, finish_of

from .conftest import BOUNDS, make_generation, make_request


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        (Generation(make_generation().key, (), Sampling(), 4), "prompt is empty"),
        (make_generation(prompt_len=256), "256 tokens; expected fewer than .* 256"),
        (make_generation(prompt=(5, 100)), "token id 100 is outside"),
        (make_generation(prompt=(5, -1)), "token id -1 is outside"),
        (make_generation(max_new=0), "max_new is 0; expected more than the 0"),
        (make_generation(max_new=2, forced=(5, 6)), "max_new is 2; expected more than the 2"),
        (make_generation(sampling=Sampling(top_p=0)), "top_p is 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_generation_that_cannot_be_served_is_refused_by_name(
    generation: Generation, message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        check(generation, BOUNDS)


def test_a_prompt_that_leaves_room_for_one_token_is_accepted() -> None:
    check(make_generation(prompt_len=255, max_new=1), BOUNDS)


def test_capacity_is_what_may_be_written_before_the_end() -> None:
    assert capacity(make_generation(prompt_len=5, max_new=4), BOUNDS, hold=False) == 8
    assert capacity(make_generation(prompt_len=250, max_new=90), BOUNDS, hold=False) == 255
    forced = make_generation(prompt_len=5, max_new=4, forced=(9, 9))
    assert capacity(forced, BOUNDS, hold=True) == 7


@pytest.mark.parametrize(
    ("sampling", "output", "expected"),
    [
        (Sampling(), [5], (None, None)),
        (Sampling(), [5, 1], (Finish.STOP, None)),
        (Sampling(ignore_eos=True), [5, 1], (None, None)),
        (Sampling(stop_token_ids=(8, 9)), [9], (Finish.STOP, 9)),
        (Sampling(ignore_eos=True, stop_token_ids=(1,)), [1], (Finish.STOP, 1)),
        (Sampling(), [5, 5, 5, 5], (Finish.LENGTH, None)),
        (Sampling(), [5, 5, 5, 1], (Finish.STOP, None)),
    ],
)
def test_the_newest_token_decides_whether_a_sequence_ends(
    sampling: Sampling, output: list[int], expected: tuple[Finish | None, int | None]
) -> None:
    request = make_request(make_generation(max_new=4, sampling=sampling))
    request.tokens += output
    assert finish_of(request, BOUNDS) == expected


def test_forced_tokens_count_as_output() -> None:
    request = make_request(make_generation(max_new=4, forced=(5, 5, 5)))
    request.tokens.append(5)
    assert finish_of(request, BOUNDS) == (Finish.LENGTH, None)


def test_a_sequence_ends_where_the_context_of_the_model_ends() -> None:
    request = make_request(make_generation(prompt_len=254, max_new=50))
    request.tokens.append(5)
    assert finish_of(request, BOUNDS) == (None, None)
    request.tokens.append(5)
    assert finish_of(request, BOUNDS) == (Finish.LENGTH, None)


def test_pages_of_a_request_are_those_with_written_positions() -> None:
    request = make_request(make_generation(prompt_len=9, max_new=20))
    request.blocks, request.slot, request.written = (4, 2, 7, 9), 3, 9
    assert request.pages(grain=8) == Pages((4, 2), 3, 9)
