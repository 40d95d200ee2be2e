"""Prompts without a template: raw text, and text with a hole to fill."""

from diptych.text.markers import Marker, Segment
from diptych.text.tokenizer import Tokenizer


def raw(
    text: str, tokenizer: Tokenizer, *, bos: bool = True, special: bool = True
) -> list[Segment]:
    """A text to go on with. `special`: spellings of special tokens in it become these tokens.

    BOS is put first, unless the text begins with it.
    """
    segments: list[Segment] = [text]
    if special:
        segments = tokenizer.split(text)
    has_bos = bool(segments) and segments[0] == tokenizer.find(Marker.BOS)
    return [Marker.BOS, *segments] if bos and not has_bos else segments


def fill(prompt: str, suffix: str) -> list[Segment]:
    """What stands before and after the hole. Nothing spelled in either is a special token."""
    return [Marker.BOS, Marker.FIM_BEGIN, prompt, Marker.FIM_HOLE, suffix, Marker.FIM_END]
