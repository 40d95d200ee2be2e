"""Images of a request, as far as its prompt needs them: their sizes, read off their headers.

Nothing is decoded here, so no image can be a bomb. Pixels are the vision encoder's.
"""

import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import imagesize

from diptych.core.errors import BadRequest
from diptych.text.image import Image, image_of, low_detail

MAX_IMAGES = 600
MAX_IMAGE_BYTES = 32 << 20
MAX_ALL_BYTES = 64 << 20
MAX_SIDE = 8192  # pixels

UNSUPPORTED = (
    "You have uploaded an unsupported image. Please make sure your image is valid and has one of "
    "the following formats: webp, png, jpeg, and gif."
)
_WHITE_SPACE = b" \t\r\n\f"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where a client says that an image is, and where it says so."""

    url: str
    is_low: bool  # a small version will do
    param: str


def measure(sources: Sequence[ImageSource]) -> list[Image]:
    """Their places in the prompt. BadRequest names the first that cannot be an image."""
    if len(sources) > MAX_IMAGES:
        text = f"{len(sources)} images; expected at most {MAX_IMAGES}"
        raise BadRequest(text, code="invalid_image", param=sources[MAX_IMAGES].param)
    left_bytes = MAX_ALL_BYTES
    found = []
    for source in sources:
        data = _fetched(source, left_bytes)
        left_bytes -= len(data)
        width, height = _size(data, source.param)
        found.append(low_detail(width, height) if source.is_low else image_of(width, height))
    return found


def _fetched(source: ImageSource, left_bytes: int) -> bytes:
    scheme, _, rest = source.url.partition(":")
    match scheme.lower():
        case "data":
            return _decoded(rest, min(MAX_IMAGE_BYTES, left_bytes), source.param)
        case "http" | "https":
            text = "images are not fetched by this server; expected a data: URL"
        case _:
            text = "expected a data: URL"
    raise BadRequest(f"{source.param}: {text}", code="unsupported_image_url", param=source.param)


def _decoded(rest: str, max_bytes: int, param: str) -> bytes:
    """What follows `data:`. The declared type is not believed, so it does not matter."""
    head, comma, body = rest.partition(",")
    if not comma or head.rpartition(";")[2].strip().lower() != "base64":
        raise _wrong("expected data:[type];base64,... of an image", param)
    try:
        packed = body.encode("ascii").translate(None, _WHITE_SPACE)
        data = binascii.a2b_base64(packed + b"=" * (-len(packed) % 4), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error):
        raise _wrong("expected base64 behind the comma", param) from None
    if len(data) > max_bytes:
        raise _too_large(param)
    return data


def _size(data: bytes, param: str) -> tuple[int, int]:
    """In pixels. The formats are those that the model's makers take, told by their first bytes."""
    is_known = data.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a"))
    if not is_known and not (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        raise _wrong(UNSUPPORTED, param)
    width, height = imagesize.get(BytesIO(data), exif_rotation=False)
    if width < 1 or height < 1:
        raise _wrong(UNSUPPORTED, param)
    if max(width, height) > MAX_SIDE:
        text = f"{param}: expected an image of at most {MAX_SIDE} pixels a side"
        raise BadRequest(text, code="image_too_large", param=param)
    return width, height


def _wrong(text: str, param: str) -> BadRequest:
    return BadRequest(f"{param}: {text}", code="invalid_image", param=param)


def _too_large(param: str) -> BadRequest:
    text = (
        f"{param}: expected images of at most {MAX_IMAGE_BYTES >> 20} MiB, and of at most "
        f"{MAX_ALL_BYTES >> 20} MiB together"
    )
    return BadRequest(text, code="image_too_large", param=param)
