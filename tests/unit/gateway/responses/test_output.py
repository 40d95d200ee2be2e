"""Items of random answers: however their pieces are cut, the stream tells the same items."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diptych.gateway.responses.output import Items
from diptych.text.pieces import CallArguments, CallEnd, CallStart, Piece, Section, Text

TEXT = st.text(min_size=1, max_size=12)
PARTS = st.lists(
    st.tuples(st.just("reasoning"), TEXT)
    | st.tuples(st.just("content"), TEXT)
    | st.tuples(st.just("call"), st.text(max_size=12)),
    max_size=6,
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Piece], list[Piece], bool]:
    """An answer in few pieces and in many, and whether it was cut."""
    few: list[Piece] = []
    many: list[Piece] = []
    parts, is_cut = draw(PARTS), draw(st.booleans())
    num_calls = 0
    for place, (kind, text) in enumerate(parts):
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        shreds = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        shreds = [shred for shred in shreds if shred]
        if kind != "call":
            section = Section(kind)
            few.append(Text(section, text))
            many += [Text(section, shred) for shred in shreds]
            continue
        for pieces, fragments in ((few, [text] if text else []), (many, shreds)):
            pieces.append(CallStart(num_calls, f"tool{num_calls}"))
            pieces += [CallArguments(num_calls, fragment) for fragment in fragments]
            if not is_cut or place + 1 < len(parts):
                pieces.append(CallEnd(num_calls))
        num_calls += 1
    return few, many, is_cut


def told(pieces: list[Piece], *, cut: bool) -> tuple[list[Any], list[Any], Items]:
    """Items put together from deltas alone, items as told when they were done, and all."""
    made, done, items = [], [], Items({})
    events = [event for piece in pieces for event in items.take(piece)]
    for event in [*events, *items.finish(cut=cut)]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            made.append("")
        elif kind.endswith(".delta"):
            made[-1] += event["delta"]
        elif kind == "output_item.done":
            done.append(event["item"])
        assert event["output_index"] == len(made) - 1
    return made, done, items


def plain(items: list[Any]) -> list[Any]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def text_of(item: dict[str, Any]) -> str:
    text: str = item["content"][0]["text"] if "content" in item else item["arguments"]
    return text


@given(answers())
def test_the_items_do_not_depend_on_how_their_pieces_are_cut(answer: Any) -> None:
    few, many, cut = answer
    made, done, items = told(many, cut=cut)
    assert plain(told(few, cut=cut)[1]) == plain(done)
    assert made == [text_of(item) for item in done]
    is_torn = bool(done) and done[-1]["type"] == "function_call" and cut
    is_torn = is_torn and done[-1]["status"] == "incomplete"
    assert items.items == (done[:-1] if is_torn else done)
    assert all(item["status"] == "completed" for item in done[:-1])


@given(answers())
def test_messages_before_a_call_are_commentary(answer: Any) -> None:
    _, done, _ = told(answer[0], cut=answer[2])
    for item, following in pairwise([*done, {"type": "the end"}]):
        if item["type"] == "message":
            is_before_call = following["type"] == "function_call"
            assert item["phase"] == ("commentary" if is_before_call else "final_answer")
