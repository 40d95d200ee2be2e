"""Stop strings over token borders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.text.stops import StopFinder

ABC = st.text(alphabet="ab", max_size=12)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def run(stops: list[str], chunks: list[str]) -> tuple[str, str | None]:
    finder = StopFinder(stops)
    text = "".join(map(finder.push, chunks)) + finder.finish()
    return text, finder.found


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    """By definition: the first place where some stop ends, the longest stop that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            found = max(ending, key=len)
            return text[: end - len(found)], found
    return text, None


@given(STOPS, st.lists(ABC))
def test_result_is_the_definition_for_any_chunking(stops: list[str], chunks: list[str]) -> None:
    assert run(stops, chunks) == expected(stops, "".join(chunks))


@given(STOPS, st.lists(ABC))
def test_nothing_is_held_that_cannot_become_a_stop(stops: list[str], chunks: list[str]) -> None:
    finder = StopFinder(stops)
    released = "".join(map(finder.push, chunks))
    if finder.found is None:
        held = "".join(chunks)[len(released) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("chunks", "text", "found"),
    [
        (["Hi\nUs", "er: x"], "Hi", "\nUser:"),
        (["Hi\nUs", "age"], "Hi\nUsage", None),
        (["Hi\nUs"], "Hi\nUs", None),
        (["\nUser:"], "", "\nUser:"),
    ],
)
def test_a_stop_split_over_tokens(chunks: list[str], text: str, found: str | None) -> None:
    assert run(["\nUser:"], chunks) == (text, found)


@given(STOPS, st.lists(ABC))
def test_a_kept_stop_is_the_end_of_the_text(stops: list[str], chunks: list[str]) -> None:
    finder = StopFinder(stops, keep=True)
    text = "".join(map(finder.push, chunks)) + finder.finish()
    without, found = expected(stops, "".join(chunks))
    assert (text, finder.found) == (without + (found or ""), found)


def test_the_place_of_a_stop_is_told() -> None:
    finder = StopFinder(["bc"])
    assert (finder.push("ab"), finder.push("cd"), finder.found_at) == ("a", "", 1)


def test_after_a_finish_the_text_begins_anew() -> None:
    finder = StopFinder(["ab"])
    assert (finder.push("a"), finder.finish(), finder.push("b")) == ("", "a", "b")
    assert finder.found is None
