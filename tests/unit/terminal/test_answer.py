"""What an answer in the terminal adds up to."""

from typing import Any

import pytest

from diptych.terminal.answer import Answer

USAGE = {
    "prompt_tokens": 31,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_pieces_add_up_and_are_told_apart() -> None:
    answer = Answer(0.0)
    assert answer.take(chunk(role="assistant", content=None, reasoning_content=""), 1) == ("", "")
    assert answer.take(chunk(reasoning_content="Hm"), 2) == ("Hm", "")
    assert answer.take(chunk(content="Yes"), 3) == ("", "Yes")
    assert answer.take(chunk(finish="stop"), 4) == ("", "")
    answer.take({"choices": [], "usage": USAGE}, 5)
    assert answer.message() == {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": "Hm",
    }
    assert answer.plain() == {
        "content": "Yes",
        "reasoning_content": "Hm",
        "finish_reason": "stop",
        "usage": USAGE,
        "timings": None,
    }


def test_facts_count_tokens_and_time_them_from_the_first_to_the_last() -> None:
    answer = Answer(10.0)
    answer.take(chunk(reasoning_content="a"), 10.25)
    answer.take(chunk(content="b"), 12.25)
    answer.take(chunk(finish="length"), 14)
    answer.take({"choices": [], "usage": USAGE, "timings": {"queue_ms": 1.26}}, 14)
    assert answer.facts() == [
        "prompt 31 (16 cached)",
        "5 tokens (2 reasoning)",
        "first token 250 ms",
        "2 tokens/s",
        "server: queue 1.3 ms",
        "cut at the token limit",
    ]


@pytest.mark.parametrize("where", ["chunk", "usage"])
def test_numbers_of_the_servers_timings_are_shown_whatever_they_are(where: str) -> None:
    timings = {"hand_off_ms": 12.0, "decode_s": 2.5, "steps": 3, "note": "x", "flag": True}
    usage: dict[str, Any] = {"prompt_tokens": 1, "completion_tokens": 1}
    told = {"timings": timings} if where == "chunk" else {"usage": usage | {"timings": timings}}
    answer = Answer(0.0)
    answer.take({"choices": [], "usage": usage} | told, 1)
    assert answer.facts() == [
        "prompt 1",
        "1 token",
        "server: hand off 12 ms, decode 2.50 s, steps 3",
    ]


def test_an_answer_that_was_stopped_before_its_text_leaves_no_message() -> None:
    answer = Answer(0.0, is_stopped=True)
    answer.take(chunk(reasoning_content="Hm"), 1)
    assert answer.message() is None
    assert answer.facts() == ["first token 1.00 s", "stopped"]
