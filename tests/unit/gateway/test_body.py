"""What is JSON, and what is too much of it."""

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway import body
from diptych.gateway.errors import ClientGone, HttpError


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (b"", 0),
        (b'{"a": 1', 7),
        ('{"é": tru}'.encode(), 7),
        (b'{"a": NaN}', 6),
        (b'{"a": Infinity}', 6),
        (b'{"a": 1e999}', 6),
        (b"\xef\xbb\xbf{}", 0),
        (b'{"a": "\\ud83d"}', 7),
        (b"{} {}", 3),
        (b'{"a": "\xff"}', 0),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(raw: bytes, at: int) -> None:
    with pytest.raises(BadRequest, match=rf"at byte {at}\)") as caught:
        body.parse(raw)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("raw", [b"[]", b"3", b'"x"', b"null"])
def test_json_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        body.parse(raw)
    assert caught.value.code == "invalid_type"


@pytest.mark.parametrize(("depth", "is_fine"), [(128, True), (129, False), (2000, False)])
def test_nesting_is_bounded(depth: int, is_fine: bool) -> None:
    raw = b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    if is_fine:
        assert body.parse(raw)
    else:
        with pytest.raises(BadRequest) as caught:
            body.parse(raw)
        assert caught.value.code == "invalid_json"


def test_brackets_in_a_text_are_not_nesting() -> None:
    assert body.parse(b'{"a": "' + b"[" * 1000 + b'"}') == {"a": "[" * 1000}


class Upload:
    """A receive channel with given parts; then it stalls."""

    def __init__(self, *parts: bytes, ends: bool = True) -> None:
        last = len(parts) - 1
        self.messages: list[MutableMapping[str, Any]] = [
            {"type": "http.request", "body": part, "more_body": not (ends and i == last)}
            for i, part in enumerate(parts)
        ]

    async def receive(self) -> MutableMapping[str, Any]:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)


async def test_a_body_in_parts_is_put_together() -> None:
    assert await body.read({}, Upload(b'{"a"', b": 1}").receive) == b'{"a": 1}'


async def test_a_declared_size_above_the_limit_is_refused_unread() -> None:
    upload = Upload(b"{}")
    with pytest.raises(HttpError) as caught:
        await body.read({"content-length": str(body.MAX_BODY_BYTES + 1)}, upload.receive)
    assert caught.value.http_status == 413
    assert len(upload.messages) == 1


async def test_a_body_without_end_is_refused_while_it_is_read() -> None:
    upload = Upload(b"123456", b"7890ab", b"never read", ends=False)
    with pytest.raises(HttpError) as caught:
        await body.read({"content-length": "5"}, upload.receive, max_bytes=10)
    assert caught.value.http_status == 413
    assert len(upload.messages) == 1


async def test_an_upload_that_stalls_is_given_up() -> None:
    with pytest.raises(HttpError) as caught:
        await body.read({}, Upload(b"{", ends=False).receive, silence_s=0.01)
    assert caught.value.http_status == 408


async def test_a_client_that_leaves_while_uploading_is_gone() -> None:
    upload = Upload(b"{", ends=False)
    upload.messages.append({"type": "http.disconnect"})
    with pytest.raises(ClientGone):
        await body.read({}, upload.receive)


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-encoding": "gzip"},
    ],
)
async def test_other_media_and_encodings_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(HttpError) as caught:
        await body.read_json(headers, Upload(b"{}").receive)
    assert caught.value.http_status == 415


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "application/json; charset=utf-8"}, {"content-type": ""}]
)
async def test_json_by_any_of_its_names_is_read(headers: dict[str, str]) -> None:
    assert await body.read_json(headers, Upload(b"{}").receive) == ({}, 2)


def test_more_containers_than_any_conversation_has_are_refused_before_they_are_made() -> None:
    many = b'{"a":[' + b"[]," * body.MAX_CONTAINERS + b"[]]}"
    with pytest.raises(BadRequest, match="objects and arrays") as caught:
        body.parse(many)
    assert caught.value.code == "invalid_json"
    typed = b'{"a":"' + b'\\"[{' * body.MAX_CONTAINERS + b'"}'
    assert body.parse(typed)["a"].startswith('"[{"[{')


@pytest.mark.parametrize("end", [b"", b"\\", b'"'])
def test_a_text_without_an_end_is_looked_at_once(end: bytes) -> None:
    began_s = time.monotonic()
    with pytest.raises(BadRequest, match="not valid JSON"):
        body.parse(b'{"' + b'\\"[[' * body.MAX_CONTAINERS + end)
    assert time.monotonic() - began_s < 5
