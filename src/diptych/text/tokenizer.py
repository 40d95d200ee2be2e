"""Text to token ids and back, from a checkpoint's tokenizer.json.

Text that a user wrote is encoded without the added vocabulary, so no spelling in it can become a
marker: only `Marker`s put there by the renderer do.
"""

import json
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from tokenizers import Tokenizer as HfTokenizer

from diptych.core.errors import Misconfigured


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


OPTIONAL = {Marker.PAD, Marker.REMINDER, Marker.DSML}  # absent = ordinary text

Segment = Marker | str  # of a prompt: a marker we put there, or text somebody wrote


class Tokenizer:
    """Immutable once built, so threads may share it."""

    def __init__(
        self,
        plain: HfTokenizer,
        ids: dict[Marker, int],
        table: list[bytes],
        added: dict[str, int],
    ) -> None:
        self._plain = plain
        self._ids = ids
        self._bytes = table
        self._spellings = {token_id: spelling for spelling, token_id in added.items()}
        self.vocab_size = len(table)
        self.longest_token_bytes = max(map(len, table))

    def find(self, marker: Marker) -> int | None:
        """Id of a marker; None if this tokenizer does not have it."""
        return self._ids.get(marker)

    def encode(self, segments: Iterable[Segment]) -> tuple[int, ...]:
        """Ids of a prompt. Neighbouring texts are joined first: BPE merges across their seam."""
        ids: list[int] = []
        text: list[str] = []
        for segment in segments:
            known = self._ids.get(segment) if isinstance(segment, Marker) else None
            if known is None:
                text.append(segment.value if isinstance(segment, Marker) else segment)
                continue
            ids += self._encode_text("".join(text))
            text.clear()
            ids.append(known)
        return tuple(ids + self._encode_text("".join(text)))

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token, possibly part of a character; b"" for one that is not shown."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def spell(self, token_id: int) -> bytes:
        """How a token is written, also one that is not shown."""
        spelling = self._spellings.get(token_id)
        return self.token_bytes(token_id) if spelling is None else spelling.encode()

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        # Of all the library's ways, this one lets other threads run, and it computes no offsets.
        (encoded,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids


def load(checkpoint: Path) -> Tokenizer:
    """Read tokenizer.json of a checkpoint folder; Misconfigured if it is not one we can use."""
    path = checkpoint / "tokenizer.json"
    try:
        document = json.loads(path.read_bytes())
        added = {token["content"]: int(token["id"]) for token in document["added_tokens"]}
        hidden = {token["content"] for token in document["added_tokens"] if token["special"]}
        vocab: dict[str, int] = document["model"]["vocab"]
        plain = HfTokenizer.from_str(json.dumps(document | _WITHOUT_ADDED))
    except FileNotFoundError as error:
        raise Misconfigured(f"{path} does not exist; a checkpoint folder has one") from error
    except Exception as error:  # the tokenizers library raises bare Exception
        raise Misconfigured(f"{path} is not a usable tokenizer: {error}") from error
    ids = {marker: added[marker.value] for marker in Marker if marker.value in added}
    missing = [m.value for m in Marker if m not in ids and m not in OPTIONAL]
    if missing:
        raise Misconfigured(f"{path} lacks the special tokens {', '.join(missing)}")
    return Tokenizer(plain, ids, _byte_table(vocab, added, hidden - {Marker.THINK.value}), added)


_WITHOUT_ADDED: dict[str, object] = {
    "added_tokens": [],
    "post_processor": None,
    "truncation": None,
    "padding": None,
}


def _byte_table(vocab: dict[str, int], added: dict[str, int], hidden: set[str]) -> list[bytes]:
    alphabet = _byte_alphabet()
    table = [b""] * (1 + max(*vocab.values(), *added.values()))
    for spelling, token_id in vocab.items():
        if all(char in alphabet for char in spelling):
            table[token_id] = bytes(alphabet[char] for char in spelling)
        else:
            table[token_id] = spelling.encode()
    for spelling, token_id in added.items():
        table[token_id] = b"" if spelling in hidden else spelling.encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE spells every byte as one printable character; this maps them back."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
