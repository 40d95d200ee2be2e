"""Every mistake on our list has a test that bears its number: traps T1-T112, reports G1-G18."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
TRAPS = {f"t{number}" for number in range(1, 113)}
REPORTS = {f"g{number}" for number in (1, 2, 3, 5, 6, 9, 10, 11, 12, 13, 14, 15, 18)}
# Their parts do not exist yet. Of T7 and T96 there is a test of what does: that nothing behind the
# end of an answer is shown or counted, and that no remote image is fetched.
WAITING = {"t66": "drafts of tokens"}


def test_every_number_has_a_test_or_a_reason_to_wait() -> None:
    named = set(numbers())
    assert (TRAPS | REPORTS) - named == WAITING.keys()
    assert named <= TRAPS | REPORTS


def numbers() -> Iterator[str]:
    """From the names of tests, which may begin with several."""
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found = re.match(r"test((?:_[tg]\d+)+)_", node.name)
                yield from found[1].split("_")[1:] if found else ()
