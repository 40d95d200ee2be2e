"""The examination knows right from wrong."""

import json

from train_tiny.dialogue import prompt_of
from train_tiny.examination import Answer, Question, questions
from train_tiny.sources.style import repeats


def judged(question: Question, text: str = "", calls: tuple[tuple[str, str], ...] = ()) -> bool:
    return all(question.judge(Answer(text, "", calls, finished=True)).values())


def test_it_is_the_same_every_time_and_has_every_subject() -> None:
    first, again = list(questions()), list(questions())
    assert [prompt_of(q.dialogue) for q in first] == [prompt_of(q.dialogue) for q in again]
    assert {q.subject for q in first} == {"sum", "recall", "object", "call", "talk"}


def test_nothing_said_is_never_right() -> None:
    for question in questions():
        assert not judged(question)


def test_a_sum_is_right_by_its_last_number() -> None:
    question = next(q for q in questions() if q.subject == "sum")
    text = str(question.dialogue.messages[-2].content)
    a, b = (int(n) for n in "".join(c if c.isdigit() else " " for c in text).split())
    assert judged(question, f"{a} + {b} = {a + b}.")
    assert not judged(question, f"{a} + {b} = {a + b + 1}.")


def test_a_call_must_name_its_tool_and_fit_its_schema() -> None:
    for question in (q for q in questions() if q.subject == "call"):
        tool = question.dialogue.tools[0]
        assert not judged(question, calls=((tool.name, "{}"),))
        verdict = question.judge(Answer("", "", (("nobody", "{}"),), finished=True))
        assert not verdict["tool call valid"]


def test_an_object_must_fit_its_schema() -> None:
    question = next(q for q in questions() if q.subject == "object")
    assert not judged(question, json.dumps({"unknown": 1}))
    assert not judged(question, "{")


def test_repetition_is_noticed() -> None:
    assert repeats("a b c d a b c d a b c d")
    assert not repeats("the sky is blue because air scatters blue light")
