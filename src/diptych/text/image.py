"""How many tokens an image takes in a prompt, and which.

Pixels and embeddings are somebody else's: here an image is the grid of tokens that stands for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, sqrt

MAX_TOKENS = 1024
MIN_PIXELS = 295_936
LOW_DETAIL_SIDE = 630  # pixels
PATCH = 14  # pixels
MERGE = 3  # patches a side become one token
_CELL = PATCH * MERGE

# Above the vocabulary: no text becomes these, no client may send them, no model samples them.
NUM_SENTINELS = 21
_START, _IMAGE, _NEW_LINE, _END = 0, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Image:
    """The place of an image in a prompt."""

    rows: int
    columns: int

    @property
    def num_tokens(self) -> int:
        return self.rows * (self.columns + 1) + 2

    def token_ids(self, vocab_size: int) -> Iterator[int]:
        """Sentinels, from `vocab_size` upwards: start, the rows with their line ends, end."""
        yield vocab_size + _START
        for _ in range(self.rows):
            for _ in range(self.columns):
                yield vocab_size + _IMAGE
            yield vocab_size + _NEW_LINE
        yield vocab_size + _END


def image_of(width: int, height: int) -> Image:
    """The grid of an image of this size in pixels."""
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width} x {height} pixels has no tokens")
    width, height = _enlarged(width, height)
    image = Image(_cells(height), _cells(width))
    if image.num_tokens <= MAX_TOKENS:
        return image
    room = MAX_TOKENS - 2
    ratio = height / width
    columns = sqrt(room / ratio + 0.25) - 0.5
    rows = columns * ratio
    if columns < 1:
        return Image(room // 2, 1)
    if rows < 1:
        return Image(1, room - 1)
    scale = min(floor(columns) * _CELL / width, floor(rows) * _CELL / height)
    fitted_height = floor(height * scale / PATCH) * PATCH
    fitted_width = floor(width * scale / PATCH) * PATCH
    return Image(_cells(fitted_height), _cells(fitted_width))


def low_detail(width: int, height: int) -> Image:
    """The grid of an image of which a small version will do: its long side is bounded first."""
    scale = min(1.0, LOW_DETAIL_SIDE / max(width, height, 1))
    if scale < 1:
        width, height = max(1, round(width * scale)), max(1, round(height * scale))
    return image_of(width, height)


def _enlarged(width: int, height: int) -> tuple[int, int]:
    """At least as many pixels as the model needs, in whole patches.

    Rounding loses pixels, so once is not always enough; some sizes stay a little below.
    """
    size = width, height
    while size[0] * size[1] < MIN_PIXELS:
        scale = sqrt(MIN_PIXELS / (size[0] * size[1]))
        larger = _whole(int(size[0] * scale)), _whole(int(size[1] * scale))
        if larger == size:
            break
        size = larger
    return size


def _whole(pixels: int) -> int:
    return ceil(pixels / PATCH) * PATCH


def _cells(pixels: int) -> int:
    return ceil(ceil(pixels / PATCH) / MERGE)
