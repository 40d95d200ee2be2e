"""Token ids that no output may hold: a model was not trained to say them, or they stand for what
only an input has."""

import re

from diptych.model.spec import ModelSpec
from diptych.text.constraints.vocabulary import NOT_TEXT, Vocabulary

PLACEHOLDER = re.compile("<｜(▁pad▁|deepseek_image|image.*|place▁holder.*)｜>")


def unsaid(vocabulary: Vocabulary, spec: ModelSpec) -> frozenset[int]:
    """Ids without a token, padding, image sentinels and placeholders."""
    unused = {i for i, token in enumerate(vocabulary.tokens) if token == NOT_TEXT + b"unused"}
    named = {i for text, i in vocabulary.special_ids.items() if PLACEHOLDER.fullmatch(text)}
    noise = {spec.dspark.noise_token_id} if spec.dspark else set()
    return frozenset(unused | named | noise | {spec.pad_token_id, spec.image_token_id})
