"""Grids of images."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.text.image import MAX_TOKENS, Image, image_of, low_detail


@pytest.mark.parametrize(
    ("width", "height", "num_tokens"),
    [
        (100, 100, 184),
        (640, 480, 206),
        (1024, 1024, 652),
        (1280, 720, 578),
        (1920, 1080, 968),
        (4000, 3000, 1001),
        (630, 476, 194),
        (59, 33, 192),
        (4, 5342, 1010),
        (58, 3426, 305),
    ],
)
def test_known_sizes_have_their_known_number_of_tokens(
    width: int, height: int, num_tokens: int
) -> None:
    assert image_of(width, height).num_tokens == num_tokens


@given(st.integers(1, 8192), st.integers(1, 8192))
def test_no_image_takes_more_than_its_tokens(width: int, height: int) -> None:
    image = image_of(width, height)
    assert image.rows >= 1
    assert image.columns >= 1
    assert image.num_tokens <= MAX_TOKENS
    ids = list(image.token_ids(1000))
    assert len(ids) == image.num_tokens
    assert (ids[0], ids[-1]) == (1000, 1004)
    assert ids[1:-1] == ([1002] * image.columns + [1003]) * image.rows


def test_extreme_shapes_are_one_line() -> None:
    assert image_of(1, 8192) == Image(511, 1)
    assert image_of(8192, 1) == Image(1, 1021)


@pytest.mark.parametrize(("width", "height"), [(0, 1), (1, 0), (-1, 5)])
def test_an_image_without_pixels_is_refused(width: int, height: int) -> None:
    with pytest.raises(ValueError, match="pixels"):
        image_of(width, height)


@pytest.mark.parametrize(
    ("width", "height", "image"),
    [
        (4000, 3000, Image(12, 15)),
        (3000, 4000, Image(15, 12)),
        (1000, 1000, Image(15, 15)),
        (4000, 1000, Image(7, 26)),
        (100, 100, image_of(100, 100)),
        (630, 476, image_of(630, 476)),
        (8192, 1, image_of(630, 1)),
    ],
)
def test_with_low_detail_the_long_side_is_bounded_first(
    width: int, height: int, image: Image
) -> None:
    assert low_detail(width, height) == image
