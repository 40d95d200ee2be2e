"""Text to token ids and back, from a checkpoint's tokenizer.json.

Text that a user wrote is encoded without the added vocabulary, so no spelling in it can become a
marker: only `Marker`s put there by the renderer do.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tokenizers import Tokenizer as HfTokenizer

from diptych.core.errors import Misconfigured
from diptych.text.image import Image
from diptych.text.markers import GROUNDING, REQUIRED, Marker, Segment


class Tokenizer:
    """Immutable once built, so threads may share it."""

    def __init__(self, plain: HfTokenizer, added: Mapping[str, int], table: list[bytes]) -> None:
        self._plain = plain
        self._added = added
        self._ids = {marker: added[marker.value] for marker in Marker if marker.value in added}
        self._spelling = re.compile(f"({_any_of(added)})")
        self._special = {token_id: text.encode() for text, token_id in added.items()}
        self._bytes = table
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
            match segment:
                case str():
                    text.append(segment)
                    continue
                case Marker() if segment not in self._ids:
                    text.append(segment.value)
                    continue
            ids += self._encode_text("".join(text))
            text.clear()
            match segment:
                case Marker():
                    ids.append(self._ids[segment])
                case Image():
                    ids += segment.token_ids(self.vocab_size)
                case int():
                    ids.append(segment)
        return tuple(ids + self._encode_text("".join(text)))

    def split(self, text: str) -> list[Segment]:
        """Text with every special token recognised by its spelling: for raw prompts only."""
        return [self._added.get(part, part) for part in self._spelling.split(text) if part]

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token, possibly part of a character; b"" for one that is not shown."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def spelling(self, token_id: int) -> bytes:
        """The same, but special tokens as the file spells them."""
        return self._special.get(token_id) or self.token_bytes(token_id)

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
    missing = [m.value for m in Marker if m.value not in added and m in REQUIRED]
    if missing:
        raise Misconfigured(f"{path} lacks the special tokens {', '.join(missing)}")
    return Tokenizer(plain, added, _byte_table(vocab, added, hidden - _SHOWN))


_SHOWN = {marker.value for marker in (Marker.THINK, *GROUNDING)}  # in an answer, they are text

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


def _any_of(words: Collection[str]) -> str:
    """Pattern of the longest of these words, a common beginning looked at once: there are many."""
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    options = [re.escape(first) + _any_of(rest) for first, rest in tails.items()]
    pattern = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
    return pattern if "" not in words else f"(?:{pattern})?" if options else ""


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE spells every byte as one printable character; this maps them back."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
