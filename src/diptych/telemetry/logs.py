"""One event a line: for people, or as JSON for programs.

Never prompts, outputs or secrets: ids, sizes and times only. What a message says as `name=%d` is a
field of the JSON, with its own type.
"""

import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime

request_id_var: ContextVar[str] = ContextVar("request_id", default="-")

QUIET = ("asyncio", "grpc", "httpcore", "httpx", "uvicorn.access", "urllib3")

_DIRECTIVE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?%(?:%|[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])")


class _Line(logging.Formatter):
    """`12:00:01.234 INFO  decode req-1 decode_service.service: message`."""

    default_time_format = "%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self, process: str) -> None:
        super().__init__(
            f"%(asctime)s %(levelname)-7s {process} %(request_id)s %(place)s: %(message)s"
        )

    def format(self, record: logging.LogRecord) -> str:
        record.request_id = request_id_var.get()
        record.place = record.name.removeprefix("diptych.")
        head, *rest = super().format(record).splitlines() or [""]
        return "\n".join([head, *(f"    {line}" for line in rest)])  # a traceback stays below


class _Json(logging.Formatter):
    """An object a line: time, level, logger, message, role, process, request_id, fields."""

    def __init__(self, process: str, role: str) -> None:
        super().__init__()
        self._process = process
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, object] = {}
        if (request_id := request_id_var.get()) != "-":
            more["request_id"] = request_id
        if fields := dict(_fields(record)):
            more["fields"] = fields
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        level, text = record.levelname.lower(), record.getMessage()
        return json_line(
            self._role, self._process, record.name, text, level, record.created, **more
        )


def json_line(
    role: str,
    process: str,
    logger: str,
    message: str,
    level: str = "info",
    time_s: float | None = None,
    **more: object,
) -> str:
    """One event of a process, now or at a time."""
    time = datetime.now(UTC) if time_s is None else datetime.fromtimestamp(time_s, UTC)
    line = {
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level,
        "logger": logger,
        "message": message,
        "role": role,
        "process": process,
        **more,
    }
    return json.dumps(line)  # not orjson, which refuses lone surrogates and large numbers


def setup(process: str, level: str, log_format: str = "text", role: str = "") -> None:
    """Send all logs of this process to standard error, as `process`; a worker's name, or a role."""
    is_json = log_format == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(process, role or process) if is_json else _Line(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Values that the message names; found by their place in the message, not in its text."""
    if not isinstance(record.args, tuple):
        return
    values = iter(record.args)
    for directive in _DIRECTIVE.finditer(str(record.msg)):
        if directive[0].endswith("%%"):
            continue
        value = next(values, None)
        if name := directive["name"]:
            yield name, value if _is_plain(value) else str(value)


def _is_plain(value: object) -> bool:
    """Whether JSON has it."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, int | str)
