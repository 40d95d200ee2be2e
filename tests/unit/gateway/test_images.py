"""Images of a request, up to their size."""

import base64
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import PIL.Image
import pytest

from diptych.core.errors import BadRequest
from diptych.gateway import images
from diptych.gateway.images import ImageSource, measure
from diptych.text.image import image_of, low_detail

FORMATS = ["PNG", "JPEG", "GIF", "WEBP"]


def picture(width: int, height: int, kind: str = "PNG", mode: str = "RGB", **how: Any) -> bytes:
    file = BytesIO()
    PIL.Image.new(mode, (width, height)).save(file, kind, **how)
    return file.getvalue()


def data_url(data: bytes, head: str = "image/png;base64") -> str:
    return f"data:{head},{base64.b64encode(data).decode()}"


def source(url: str, is_low: bool = False, param: str = "here") -> ImageSource:
    return ImageSource(url, is_low, param)


def refused(*sources: ImageSource) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        measure(sources)
    return caught.value


def chunk(kind: bytes, data: bytes) -> bytes:
    crc = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + crc


def png_header(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda w, h, kind=kind: picture(w, h, kind) for kind in FORMATS),
        lambda w, h: picture(w, h, "JPEG", "CMYK", progressive=True),
        lambda w, h: picture(w, h, "WEBP", lossless=True),
        lambda w, h: picture(w, h, "WEBP", "RGBA", exif=b"Exif\0\0"),
        lambda w, h: picture(w, h, "PNG", "I;16"),
        lambda w, h: picture(w, h, "GIF", "P"),
    ],
)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (640, 480), (31, 977), (1000, 17)])
def test_the_size_is_read_off_the_header(
    make: Callable[[int, int], bytes], width: int, height: int
) -> None:
    urls = [data_url(make(width, height), f"{kind};base64") for kind in ("image/png", "", "x/y")]
    assert measure([source(url) for url in urls]) == [image_of(width, height)] * 3


def test_t100_the_format_is_sniffed_whatever_is_declared() -> None:
    jpeg = picture(50, 90, "JPEG")
    for head in ("image/jpg;base64", "image/webp;base64", "text/plain;charset=utf-8;base64"):
        assert measure([source(data_url(jpeg, head))]) == [image_of(50, 90)]


def test_the_orientation_is_ignored() -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    assert measure([source(data_url(picture(700, 100, "JPEG", exif=exif)))]) == [image_of(700, 100)]


def test_low_detail_is_a_small_image() -> None:
    url = data_url(picture(4000, 3000))
    assert measure([source(url, is_low=True), source(url)]) == [
        low_detail(4000, 3000),
        image_of(4000, 3000),
    ]


def test_white_space_in_base64_and_missing_padding_are_tolerated() -> None:
    head, comma, body = data_url(picture(3, 5)).partition(",")
    spaced = "\n".join(body[i : i + 7] for i in range(0, len(body), 7)) + " \r\n"
    assert measure([source(head + comma + spaced)]) == [image_of(3, 5)]
    assert measure([source(head + comma + body.rstrip("="))]) == [image_of(3, 5)]
    assert measure([source("DATA:image/png;BASE64," + body)]) == [image_of(3, 5)]


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://example.com/a.png", "unsupported_image_url"),
        ("HTTP://example.com/a.png", "unsupported_image_url"),
        ("file:///etc/passwd", "unsupported_image_url"),
        ("ftp://example.com/a.png", "unsupported_image_url"),
        ("iVBORw0KGgo", "unsupported_image_url"),
        ("", "unsupported_image_url"),
        ("data:image/png,abc", "invalid_image"),
        ("data:image/png;base64", "invalid_image"),
        ("data:image/png;base64,", "invalid_image"),
        ("data:image/png;base64,a", "invalid_image"),
        ("data:image/png;base64,ab=c", "invalid_image"),
        ("data:image/png;base64,ab!d", "invalid_image"),
        ("data:image/png;base64,äbcd", "invalid_image"),
        (data_url(b"no image at all"), "invalid_image"),
        (data_url(b"<svg width='5' height='5'/>"), "invalid_image"),
        (data_url(picture(5, 5, "BMP")), "invalid_image"),
        (data_url(picture(5, 5, "TIFF")), "invalid_image"),
        (data_url(picture(5, 5)[:20]), "invalid_image"),
        (data_url(picture(5, 5, "JPEG")[:30]), "invalid_image"),
        (data_url(picture(5, 5, "GIF")[:7]), "invalid_image"),
        (data_url(picture(5, 5, "WEBP")[:14]), "invalid_image"),
        (data_url(png_header(0, 5)), "invalid_image"),
    ],
)
def test_t95_t96_what_is_no_image_is_refused_unfetched_and_without_repeating_it(
    url: str, code: str
) -> None:
    error = refused(source(data_url(picture(1, 1))), source(url, param="there"))
    assert (error.code, error.param) == (code, "there")
    assert len(error.message) < 300
    if len(url) > 40:
        assert url[22:40] not in error.message


def test_t97_a_bomb_is_refused_by_its_header() -> None:
    for width, height in ((30_000, 30_000), (8193, 1), (1, 8193), (2**31 - 1, 2**31 - 1)):
        assert refused(source(data_url(png_header(width, height)))).code == "image_too_large"
    assert measure([source(data_url(png_header(8192, 8192)))]) == [image_of(8192, 8192)]


def test_bytes_of_an_image_and_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture(9, 9)
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", len(data))
    monkeypatch.setattr(images, "MAX_ALL_BYTES", 3 * len(data) - 1)
    assert len(measure([source(data_url(data))] * 2)) == 2
    error = refused(*[source(data_url(data), param=f"p{i}") for i in range(3)])
    assert (error.code, error.param) == ("image_too_large", "p2")
    assert refused(source(data_url(data + b"\0"))).code == "image_too_large"


def test_the_number_of_images_is_bounded() -> None:
    url = data_url(picture(1, 1))
    error = refused(*[source(url, param=f"p{i}") for i in range(images.MAX_IMAGES + 1)])
    assert (error.code, error.param) == ("invalid_image", "p600")
