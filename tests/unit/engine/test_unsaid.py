"""Ids that no output holds."""

from pathlib import Path

from diptych.engine.unsaid import unsaid
from diptych.model.spec import ModelSpec
from diptych.text.constraints.vocabulary import read_vocabulary

TINY = Path(__file__).parents[2] / "golden" / "tiny-text"


def test_padding_images_placeholders_and_ids_without_a_token_are_never_said() -> None:
    vocabulary = read_vocabulary((TINY / "tokenizer.json").read_bytes(), 963, [1])
    named = vocabulary.special_ids
    placeholders = {named[f"<｜place▁holder▁no▁{i}｜>"] for i in range(3)}
    pad, image = named["<｜▁pad▁｜>"], named["<｜deepseek_image｜>"]
    assert unsaid(vocabulary, ModelSpec.load(TINY)) == {pad, image, *placeholders, 960, 961, 962}
