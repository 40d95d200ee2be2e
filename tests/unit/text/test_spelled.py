"""Markers in text."""

from hypothesis import given
from hypothesis import strategies as st

from diptych.text.markers import Marker, split
from diptych.text.spelled import Spelled

MARKERS = {Marker.THINK, Marker.END_THINK, Marker.DSML, Marker.EOS}
TEXT = st.lists(
    st.sampled_from([*(m.value for m in MARKERS), "<", "</", "｜", "</thi", "<｜", "x", "\n"])
).map("".join)


@given(TEXT, st.integers(1, 5))
def test_any_split_gives_the_same_markers(text: str, size: int) -> None:
    spelled = Spelled(MARKERS)
    parts: list[str | Marker] = []
    for start in range(0, len(text), size):
        parts += spelled.push(text[start : start + size])
    parts += spelled.finish()
    joined: list[str | Marker] = []
    for part in parts:
        assert part
        if joined and isinstance(part, str) and isinstance(last := joined[-1], str):
            joined[-1] = last + part
        else:
            joined.append(part)
    assert joined == split(text, MARKERS)


def test_only_what_could_become_a_marker_is_held() -> None:
    spelled = Spelled(MARKERS)
    assert spelled.push("a</thin") == ["a"]
    assert spelled.push("g") == ["</thing"]
    assert spelled.push("</think>b") == [Marker.END_THINK, "b"]
    assert spelled.finish() == []
