"""The tiny model's tokenizer: the first merges of DeepSeek-V4's, and every special token.

The vocabulary is in merge order, so its beginning is itself a tokenizer: same pre-tokenizer, same
byte alphabet, same spellings of the special tokens. Placeholders without a meaning are left out.
"""

import json
import sys
from pathlib import Path

NUM_MERGES = 7_500
RENAMED = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>"}  # V4's spellings -> V4.1's
PLACEHOLDER = "holder"


def cut(source: dict[str, object], num_merges: int = NUM_MERGES) -> dict[str, object]:
    """A tokenizer.json with the first merges only; ids are new, in the old order."""
    model = dict(source["model"])  # type: ignore[call-overload]
    merges = model["merges"][:num_merges]
    ordered = sorted(model["vocab"].items(), key=lambda item: item[1])
    added = [dict(token) for token in source["added_tokens"]]  # type: ignore[attr-defined]
    first = [token["content"] for token in added if token["id"] < 3]
    alphabet = [text for text, _ in ordered if len(text) == 1]
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    texts = [*first, *alphabet, *("".join(pair) for pair in pairs)]
    vocab = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    kept: list[dict[str, object]] = []
    for token in added:
        token["content"] = RENAMED.get(token["id"], token["content"])
        if PLACEHOLDER not in token["content"]:
            token["id"] = vocab.get(token["content"], len(vocab) + len(kept) - len(first))
            kept.append(token)
    model |= {"vocab": vocab, "merges": merges}
    return source | {"added_tokens": kept, "model": model}


def main() -> None:
    """`python vocabulary.py SOURCE TARGET`: both tokenizer.json files."""
    source, target = map(Path, sys.argv[1:3])
    document = cut(json.loads(source.read_bytes()))
    target.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
