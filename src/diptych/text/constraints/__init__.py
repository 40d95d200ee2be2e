"""What the output of a request may be: schemas, patterns, grammars, tool calls. No torch here.

    constraint = from_response_format(body["response_format"])   # the value that travels
    check(constraint)                                            # gateway: BadRequest or fine
    grammar = build(constraint)                                  # engine: for its backends

Reading order: constraint, requests, build; then grammar (the common form), its readers regex,
schema, gbnf, tags and tools, soundness, and the writers ebnf and lark.
"""

from diptych.text.constraints.build import build, check
from diptych.text.constraints.constraint import Constraint, Kind
from diptych.text.constraints.requests import (
    Tool,
    from_response_format,
    from_structured_outputs,
    from_tools,
)

__all__ = [
    "Constraint",
    "Kind",
    "Tool",
    "build",
    "check",
    "from_response_format",
    "from_structured_outputs",
    "from_tools",
]
