"""Runs the checks of a script and says how each went. No dependency: every client's venv has it."""

import inspect
import os
import sys
import time
import traceback
from typing import Any

URL = os.environ.get("DIPTYCH_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("DIPTYCH_MODEL", "")
KEY = os.environ.get("DIPTYCH_API_KEY", "anything")

QUESTION = "What is the weather in Paris?"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": SCHEMA,
        "strict": True,
    },
}
ANSWER: dict[str, Any] = {"thinking": {"type": "disabled"}}


def main() -> None:
    """Run all `check_…` of the script that was started, in order; exit 1 if one fails."""
    script = sys.modules["__main__"]
    checks = [
        f for name, f in inspect.getmembers(script, inspect.isfunction) if name[:6] == "check_"
    ]
    failed = 0
    for check in sorted(checks, key=lambda f: f.__code__.co_firstlineno):
        name, began_s = check.__name__.removeprefix("check_").replace("_", " "), time.monotonic()
        try:
            check()
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}")
        else:
            print(f"ok      {name} ({time.monotonic() - began_s:.1f} s)")
    sys.exit(failed > 0)
