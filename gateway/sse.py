"""Server-sent events as bytes, and the two that every OpenAI-style stream knows."""

import re
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

# JSON leaves these as they are; some clients split lines there. Only a few texts have their bytes.
_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")
_LEADS = (b"\xc2\x85", b"\xe2\x80")


def event(body: dict[str, Any], name: str = "") -> bytes:
    """One event, its data on one line by anybody's idea of a line. OpenAI's have no name."""
    data = orjson.dumps(body)
    if any(lead in data for lead in _LEADS):
        data = _LINE_BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + data + b"\n\n"
