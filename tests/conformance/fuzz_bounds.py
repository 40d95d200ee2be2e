"""Keeps what schemathesis asks for small: it looks for wrong answers, not for long ones.

What is valid is made cheap, and about the model that is served; what is wrong stays wrong.
"""

from typing import Any

import schemathesis
from checks import ANSWER, MODEL

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
MAX_TOKENS = 6
MAX_CHOICES = 2


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """The body that is sent."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    if context.operation.path.endswith(("chat/completions", "messages")):
        body.setdefault("thinking", ANSWER["thinking"])
    if context.operation.path.endswith("chat/completions"):
        body.setdefault("max_tokens", MAX_TOKENS)
    if context.operation.path.endswith("responses"):
        body.setdefault("max_output_tokens", MAX_TOKENS)
    for name, most in [*((limit, MAX_TOKENS) for limit in LIMITS), ("n", MAX_CHOICES)]:
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > most:
            body[name] = most
    return body
