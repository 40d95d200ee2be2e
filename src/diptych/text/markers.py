"""The model's special tokens, and prompts as sequences of them and of text."""

import re
from collections.abc import Iterable
from enum import Enum
from functools import cache

from diptych.text.image import Image


class Marker(Enum):
    """Special tokens, by their spelling in tokenizer.json."""

    BOS = "<｜begin▁of▁sentence｜>"
    EOS = "<｜end▁of▁sentence｜>"
    PAD = "<｜▁pad▁｜>"
    SYSTEM = "<｜System｜>"
    USER = "<｜User｜>"
    ASSISTANT = "<｜Assistant｜>"
    REMINDER = "<｜latest_reminder｜>"
    THINK = "<think>"
    END_THINK = "</think>"
    DSML = "｜DSML｜"
    IMAGE = "<｜deepseek_image｜>"
    # Quick instructions
    ACTION = "<｜action｜>"
    QUERY = "<｜query｜>"
    AUTHORITY = "<｜authority｜>"
    DOMAIN = "<｜domain｜>"
    TITLE = "<｜title｜>"
    READ_URL = "<｜read_url｜>"
    # Filling in the middle
    FIM_BEGIN = "<｜fim▁begin｜>"
    FIM_HOLE = "<｜fim▁hole｜>"
    FIM_END = "<｜fim▁end｜>"
    # Grounding: the model writes these into its answers
    REF = "<｜ref｜>"
    END_REF = "<｜/ref｜>"
    BOX = "<｜box｜>"
    END_BOX = "<｜/box｜>"
    POINT = "<｜point｜>"
    END_POINT = "<｜/point｜>"
    POLYGON = "<｜polygon｜>"
    END_POLYGON = "<｜/polygon｜>"


REQUIRED = {
    *(Marker.BOS, Marker.EOS, Marker.SYSTEM, Marker.USER, Marker.ASSISTANT),
    *(Marker.THINK, Marker.END_THINK),
}  # any other is ordinary text where a tokenizer lacks it

ROLES = {Marker.BOS, Marker.SYSTEM, Marker.USER, Marker.ASSISTANT, Marker.REMINDER}

GROUNDING = {
    *(Marker.REF, Marker.END_REF, Marker.BOX, Marker.END_BOX),
    *(Marker.POINT, Marker.END_POINT, Marker.POLYGON, Marker.END_POLYGON),
}

Segment = Marker | Image | int | str
"""Of a prompt: a marker we put there, an image, a token id, or text that somebody wrote."""


def split(text: str, markers: Iterable[Marker]) -> list[Segment]:
    """Text with these markers recognised by their spelling. Only for text that we or the model
    wrote."""
    by_spelling = {marker.value: marker for marker in markers}
    parts = _pattern(frozenset(by_spelling)).split(text)
    return [by_spelling.get(part, part) for part in parts if part]


def spell(segments: Iterable[Segment]) -> str:
    """As one text, for people; images and ids as what stands for them."""
    return "".join(map(_spelled, segments))


def _spelled(segment: Segment) -> str:
    match segment:
        case Marker():
            return segment.value
        case Image():
            return Marker.IMAGE.value
        case int():
            return f"<{segment}>"
    return segment


@cache
def _pattern(spellings: frozenset[str]) -> re.Pattern[str]:
    return re.compile(f"({'|'.join(map(re.escape, sorted(spellings, reverse=True)))})")
