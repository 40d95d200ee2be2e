"""Blocks of random answers: however their pieces are cut, the stream tells the same blocks."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.gateway.anthropic.output import Blocks
from diptych.text.pieces import CallArguments, CallEnd, CallStart, Piece, Section, Text

TEXT = st.text(min_size=1, max_size=12)
INPUT = st.dictionaries(TEXT, TEXT | st.integers(-(2**53), 2**53), max_size=2)
PARTS = st.lists(
    st.tuples(st.just("reasoning"), TEXT)
    | st.tuples(st.just("content"), TEXT)
    | st.tuples(st.just("call"), INPUT.map(lambda value: orjson.dumps(value).decode())),
    max_size=6,
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Piece], list[Piece]]:
    """An answer in few pieces and in many."""
    few: list[Piece] = []
    many: list[Piece] = []
    num_calls = 0
    for kind, text in draw(PARTS):
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        shreds = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        shreds = [shred for shred in shreds if shred]
        if kind != "call":
            few.append(Text(Section(kind), text))
            many += [Text(Section(kind), shred) for shred in shreds]
            continue
        for pieces, fragments in ((few, [text]), (many, shreds)):
            pieces.append(CallStart(num_calls, f"tool{num_calls}"))
            pieces += [CallArguments(num_calls, fragment) for fragment in fragments]
            pieces.append(CallEnd(num_calls))
        num_calls += 1
    return few, many


def told(pieces: list[Piece]) -> tuple[list[Any], list[Any]]:
    """Blocks put together from events, and as the whole message has them."""
    made: list[Any] = []
    blocks = Blocks("signed")
    events = [event for piece in pieces for event in blocks.take(piece)]
    is_open = False
    for event in [*events, *blocks.finish()]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                is_open = True
                made.append({**event["content_block"], "text of it": ""})
            case "content_block_delta":
                kind, *_ = [key for key in event["delta"] if key != "type"]
                if kind == "signature":
                    made[-1]["signature"] = event["delta"]["signature"]
                else:
                    made[-1]["text of it"] += event["delta"][kind]
            case "content_block_stop":
                is_open = False
                text = made[-1].pop("text of it")
                if made[-1]["type"] == "tool_use":
                    made[-1]["input"] = orjson.loads(text)
                else:
                    made[-1][made[-1]["type"]] = text
        assert event["index"] == len(made) - 1
    return made, orjson.loads(orjson.dumps(blocks.content))


@given(answers())
def test_the_blocks_do_not_depend_on_how_their_pieces_are_cut(
    answer: tuple[list[Piece], list[Piece]],
) -> None:
    few, many = answer
    made, whole = told(many)
    assert made == whole
    for block, other in zip(made, told(few)[1], strict=True):
        assert {**block, "id": ""} == {**other, "id": ""}


def test_a_call_that_never_ended_has_no_input() -> None:
    blocks = Blocks("signed")
    for piece in (CallStart(0, "f"), CallArguments(0, '{"a": "b')):
        blocks.take(piece)
    blocks.finish()
    (block,) = orjson.loads(orjson.dumps(blocks.content))
    assert block["input"] == {}


@pytest.mark.parametrize("text", ['{"a": [1, ', "[1]", "", '{"a": 1} {}', '{"a": NaN}'])
def test_a_call_whose_arguments_are_no_object_has_no_input(text: str) -> None:
    """A grammar's values, and very long ones, were passed on unread."""
    blocks = Blocks("signed")
    for piece in (CallStart(0, "f"), CallArguments(0, text), CallEnd(0)):
        blocks.take(piece)
    (block,) = orjson.loads(orjson.dumps(blocks.content))
    assert block["input"] == {}
