"""Server-sent events as bytes, and the two that every OpenAI-style stream knows."""

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

# JSON leaves these as they are; some clients split lines there.
_LINE_BREAKS = [(char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\x85\u2028\u2029"]


def event(body: dict[str, Any], name: str = "") -> bytes:
    """One event, its data on one line by anybody's idea of a line. OpenAI's have no name."""
    data = orjson.dumps(body)
    for raw, escaped in _LINE_BREAKS:
        data = data.replace(raw, escaped)
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + data + b"\n\n"
