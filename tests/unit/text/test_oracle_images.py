"""Grids of images against the library of the model's makers."""

import random
from io import BytesIO
from math import ceil

import deepseek_recipe as recipe
import PIL.Image
import pytest

from diptych.text.image import MERGE, PATCH, Image, image_of, low_detail


def theirs(width: int, height: int, detail: str) -> Image:
    file = BytesIO()
    PIL.Image.new("L", (width, height)).save(file, "PNG", compress_level=1)
    options = recipe.PreprocessOptions(detail, 8192, 630)  # type: ignore[arg-type]
    found = recipe.OpenCvImagePreprocessor().preprocess(file.getvalue(), options)
    rows, columns = (ceil(ceil(side / PATCH) / MERGE) for side in (found.height, found.width))
    return Image(rows, columns)


@pytest.mark.parametrize("longest", [60, 900, 3000])
def test_grids_are_theirs(request: pytest.FixtureRequest, longest: int) -> None:
    rng = random.Random(request.node.nodeid)
    for _ in range(12):
        width, height = rng.randint(1, longest), rng.randint(1, longest)
        assert low_detail(width, height) == theirs(width, height, "low"), (width, height)
        for detail in ("auto", "high", "original"):
            assert image_of(width, height) == theirs(width, height, detail), (width, height)
