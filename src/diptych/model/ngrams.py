"""From token ids to Engram table rows: integers only, known before the forward starts.

Spellings that normalise alike share a *compressed id*; the compressed ids of a token and its
predecessors are hashed, once per n-gram size and head, to rows of a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, normalizers
from torch import Tensor

from diptych.core.errors import Misconfigured
from diptych.model.spec import EngramSpec, ModelSpec

TOKENIZER_FILE = "tokenizer.json"
DEAD = -1  # the compressed id of an image position: it blocks look-back
_LONE_SPACE = "\ue000"  # keeps the token that is exactly one space from being stripped away
_REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


@dataclass(frozen=True, slots=True)
class Hashing:
    """The hash functions of a model. `tables` follow the order of its Engram layers."""

    token_map: Tensor  # [V] int64: compressed id of a token id
    pad: int  # compressed id that stands for what is not there
    multipliers: Tensor  # [tables, n] int64
    primes: Tensor  # [tables, (n - 1) * heads] int64
    offsets: Tensor  # [tables, (n - 1) * heads] int64

    @classmethod
    def of(cls, spec: EngramSpec, token_map: Tensor) -> Self:
        """Derive everything from the configuration; its row counts are the check."""
        primes = find_primes(spec)
        for layer, rows, table in zip(spec.layers, spec.rows, primes, strict=True):
            if sum(table) != rows:
                raise Misconfigured(
                    f"config.json: text_config.engram_num_embeddings: expected {sum(table)} rows "
                    f"for layer {layer}, the sum of its primes, found {rows}"
                )
        per_table = torch.tensor(primes, dtype=torch.int64)
        return cls(
            token_map=token_map.to(torch.int64),
            pad=int(token_map[spec.pad_token_id]),
            multipliers=find_multipliers(spec),
            primes=per_table,
            offsets=per_table.cumsum(1) - per_table,
        )

    def rows(self, grams: Tensor, table: int) -> Tensor:
        """grams [T, n] int64 -> rows of a table [T, (n - 1) * heads], by n-gram size, then head."""
        terms = grams * self.multipliers[table]
        heads = self.primes.shape[1] // (grams.shape[1] - 1)
        rolls, roll = [], terms[:, 0]
        for i in range(1, grams.shape[1]):
            roll = roll ^ terms[:, i]
            rolls.append(roll.unsqueeze(1).expand(-1, heads))
        return torch.cat(rolls, 1) % self.primes[table] + self.offsets[table]

    def grams(self, compressed: Sequence[int] | Tensor, start: int, stop: int) -> Tensor:
        """Rows of n compressed ids for positions start..stop-1 of one sequence: [stop - start, n].

        `compressed` holds the compressed ids from position 0 on, DEAD where images are. Column r
        is the id r positions back, or `pad` from the first missing or DEAD one on.
        """
        n, count = self.multipliers.shape[1], stop - start
        ids = torch.as_tensor(compressed[max(start - n + 1, 0) : stop], dtype=torch.int64)
        ids = torch.cat((torch.full((count + n - 1 - len(ids),), DEAD), ids))
        grams = torch.stack([ids[n - 1 - r : n - 1 - r + count] for r in range(n)], 1)
        blocked = (grams == DEAD).cumsum(1) > 0
        return torch.where(blocked, self.pad, grams)


def find_primes(spec: EngramSpec) -> list[list[int]]:
    """Per layer the table sizes of its heads: primes above the vocabulary size, no two alike."""
    used: set[int] = set()
    tables = []
    for _ in spec.layers:
        table = []
        for _ in range(2, spec.max_ngram + 1):
            candidate = spec.vocab_size - 1
            for _ in range(spec.heads):
                candidate = next(c for c in count(candidate + 1) if c not in used and _is_prime(c))
                used.add(candidate)
                table.append(candidate)
        tables.append(table)
    return tables


def find_multipliers(spec: EngramSpec) -> Tensor:
    """Odd multipliers [layers, n], small enough that id x multiplier stays below 2 ** 63."""
    bound = max(1, (2**63 - 1) // spec.compressed_vocab_size // 2)
    rows = [
        np.random.default_rng(10007 * layer).integers(0, bound, size=spec.max_ngram, dtype=np.int64)
        for layer in spec.layers
    ]
    return torch.from_numpy(np.stack(rows)) * 2 + 1


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def compression_map(folder: Path | str, spec: ModelSpec) -> Tensor:
    """The compressed id of every token id [V] int64, from the folder's tokenizer.

    Ids that the tokenizer does not have read as padding. The number of distinct keys must be the
    configured one: a mismatch would silently rehash everything.
    """
    assert spec.engram
    path = Path(folder) / TOKENIZER_FILE
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise Misconfigured(f"{path}: not a readable tokenizer: {error}") from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > spec.vocab_size:
        raise Misconfigured(f"{path}: expected at most {spec.vocab_size} tokens, found {size}")
    ids, num_keys = compress(tokenizer, size)
    if num_keys != spec.engram.compressed_vocab_size:
        raise Misconfigured(
            f"{path}: expected {spec.engram.compressed_vocab_size} distinct normalised tokens "
            f"(text_config.engram_compressed_vocab_size), found {num_keys}"
        )
    if spec.engram.pad_token_id >= size:
        raise Misconfigured(f"{path}: no token has the id engram_pad_token_id")
    token_map = torch.full((spec.vocab_size,), ids[spec.engram.pad_token_id])
    token_map[:size] = torch.tensor(ids)
    return token_map


def compress(tokenizer: Tokenizer, size: int) -> tuple[list[int], int]:
    """Number the normalised spellings of ids 0..size-1 in order of first appearance."""
    normaliser = _normaliser()
    keys: dict[str, int] = {}
    ids = []
    for token in range(size):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if _REPLACEMENT in text:
            key = tokenizer.id_to_token(token) or text
        else:
            key = normaliser.normalize_str(text) or text
        ids.append(keys.setdefault(key, len(keys)))
    return ids, len(keys)


def _normaliser() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
