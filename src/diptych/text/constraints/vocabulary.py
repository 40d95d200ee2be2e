"""A tokenizer as grammars see it: the bytes of each token, and which ids are no text."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from diptych.core.errors import Misconfigured
from diptych.text.constraints.grammar import invalid

NOT_TEXT = b"\xff"  # starts what UTF-8 never contains, so no grammar over characters matches it


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token bytes by id; special and unused ids start with NOT_TEXT."""

    tokens: tuple[bytes, ...] = field(repr=False)
    special_ids: Mapping[str, int] = field(repr=False)
    stop_ids: tuple[int, ...]
    digest: str

    @property
    def num_words(self) -> int:
        """Length of a mask row in 32-bit words."""
        return (len(self.tokens) + 31) // 32

    def token_id(self, spelling: str) -> int:
        """The id of a special token."""
        found = self.special_ids.get(spelling)
        if found is None:
            raise invalid(f"this model has no token {spelling}", "tools")
        return found


def read_vocabulary(tokenizer_json: bytes, size: int, stop_ids: Sequence[int]) -> Vocabulary:
    """The vocabulary of a byte-level `tokenizer.json`; `size` is the width of the logits."""
    held = json.loads(tokenizer_json)
    added = {cast(str, a["content"]): cast(int, a["id"]) for a in held["added_tokens"]}
    vocab = cast(dict[str, int], held["model"]["vocab"])
    highest = max((*vocab.values(), *added.values()))
    if highest >= size or any(not 0 <= i < size for i in stop_ids):
        raise Misconfigured(f"tokenizer.json has ids up to {highest}, the model {size} logits")
    tokens = [NOT_TEXT + b"unused"] * size
    byte_of = _byte_alphabet()
    for spelling, token in vocab.items():
        if spelling not in added:
            tokens[token] = bytes(byte_of[c] for c in spelling)
    for spelling, token in added.items():
        tokens[token] = NOT_TEXT + spelling.encode()
    digest = hashlib.blake2b(digest_size=16)
    for piece in tokens:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    digest.update(json.dumps(sorted(stop_ids)).encode())
    return Vocabulary(tuple(tokens), added, tuple(sorted(stop_ids)), digest.hexdigest())


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level tokenizers spell the 256 bytes."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}
