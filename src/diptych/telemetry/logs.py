"""One event a line, for people: time, level, role, request, module, message with fields.

Never prompts, outputs or secrets: ids, sizes and times only.
"""

import logging
import sys
from contextvars import ContextVar

request_id_var: ContextVar[str] = ContextVar("request_id", default="-")

QUIET = ("asyncio", "grpc", "httpcore", "httpx", "uvicorn.access", "urllib3")


class _Line(logging.Formatter):
    """`12:00:01.234 INFO  decode req-1 decode_service.service: message`."""

    default_time_format = "%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self, role: str) -> None:
        super().__init__(
            f"%(asctime)s %(levelname)-7s {role} %(request_id)s %(place)s: %(message)s"
        )

    def format(self, record: logging.LogRecord) -> str:
        record.request_id = request_id_var.get()
        record.place = record.name.removeprefix("diptych.")
        head, *rest = super().format(record).splitlines() or [""]
        return "\n".join([head, *(f"    {line}" for line in rest)])  # a traceback stays below


def setup(role: str, level: str) -> None:
    """Send all logs of this process to standard error, as `role`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(role))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
