"""Where answers begin, by what the prompt leaves open."""

import pytest

from diptych.text.chat import Chat, Message, Role, Task, render
from diptych.text.completion import fill
from diptych.text.markers import Marker
from diptych.text.opening import Opening, opening_of
from diptych.text.tools import Tool

USER = Message(Role.USER, "</think>\n\n<｜DSML｜ calls>\n")
TOOLS = (Tool("f"),)


def prefix(text: str, reasoning: str = "") -> Message:
    return Message(Role.ASSISTANT, text, reasoning, is_prefix=True)


@pytest.mark.parametrize(
    ("chat", "opening"),
    [
        (Chat((USER,), 75), Opening.REASONING),
        (Chat((USER,), None), Opening.ANSWER),
        (Chat((USER,), 75, TOOLS, opens_calls=True), Opening.REASONING),
        (Chat((USER,), None, TOOLS, opens_calls=True), Opening.CALLS),
        (Chat((USER, prefix("")), 75), Opening.REASONING),
        (Chat((USER, prefix("", "r")), 75), Opening.MORE_REASONING),
        (Chat((USER, prefix("a", "r")), 75), Opening.MORE_ANSWER),
        (Chat((USER, prefix("a", "r")), None), Opening.MORE_ANSWER),
        (Chat((USER, prefix("\n\n<｜DSML｜ calls>\n")), None), Opening.MORE_ANSWER),
        (Chat((USER,), None, task=Task.TITLE), Opening.PLAIN),
        (Chat((USER,), 75, task=Task.ACTION), Opening.PLAIN),
        (Chat((USER,), 75, has_header=False), Opening.PLAIN),
    ],
)
def test_the_prompt_tells_where_the_answer_begins(chat: Chat, opening: Opening) -> None:
    assert opening_of(render(chat)) is opening


def test_prompts_without_a_template_open_plain_text() -> None:
    assert opening_of([Marker.BOS, "a"]) is Opening.PLAIN
    assert opening_of(["a"]) is Opening.PLAIN
    assert opening_of([]) is Opening.PLAIN
    assert opening_of(fill("a", "b")) is Opening.PLAIN
