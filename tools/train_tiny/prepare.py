"""Build the training mix: `python -m train_tiny.prepare --packages DIR --model DIR --out DIR`.

Every source is drawn from its own seed; one document in a hundred, chosen by its hash, is held out.
"""

import argparse
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.progress import track

from diptych.text import tokenizer as tokenizers
from diptych.text.tokenizer import Tokenizer
from diptych.text.tools import Tool
from train_tiny import shards
from train_tiny.dialogue import Dialogue, document
from train_tiny.material import BANNED_WORDS, Packages, pairs
from train_tiny.shards import Document
from train_tiny.sources import calls, facts, objects, recall, sums, talk

Draw = Callable[[random.Random], Dialogue]

# Documents of each source at scale 1: a mix to begin with, one for a long second run, and three to
# refine on a CPU what those taught. In these is what it does worst, and of all else enough to stay.
MIXES = {
    "whole": {
        "talk": 60_000, "story": 15_000, "chatterbot": 16_000, "facts": 60_000, "sums": 40_000,
        "recall": 14_000, "echo": 12_000, "objects": 36_000, "calls": 14_000, "bfcl": 3_000,
    },
    "second": {
        "talk": 80_000, "story": 12_000, "chatterbot": 6_000, "facts": 50_000, "sums": 20_000,
        "paper": 40_000, "recall": 8_000, "far": 8_000, "echo": 12_000, "objects": 30_000,
        "calls": 10_000, "asked": 15_000, "bfcl": 3_000,
    },
    "sums": {
        "talk": 1_500, "story": 300, "chatterbot": 500, "facts": 1_500, "sums": 1_000,
        "paper": 40_000, "recall": 400, "far": 400, "echo": 400, "objects": 600, "calls": 600,
        "bfcl": 60,
    },
    "far": {
        "talk": 2_000, "story": 500, "chatterbot": 600, "facts": 2_000, "sums": 1_500,
        "paper": 5_000, "recall": 900, "far": 1_000, "echo": 600, "objects": 2_500,
        "calls": 1_200, "bfcl": 250,
    },
    "calls": {
        "talk": 800, "story": 100, "chatterbot": 200, "facts": 500, "sums": 300, "paper": 1_200,
        "recall": 250, "far": 250, "echo": 200, "objects": 1_000, "calls": 300, "asked": 2_400,
        "bfcl": 100,
    },
}  # fmt: skip
MAX_TOKENS = shards.LENGTHS[-1]


def sources(packages: Packages) -> dict[str, Draw]:
    """How to draw a dialogue of each source."""
    senses = packages.senses()
    tables = facts.Tables(packages.countries(), packages.elements(), senses)
    filler = sentences(packages)
    chats = [("english", turns) for turns in packages.chats("english")]
    chats += [("chinese", turns) for turns in packages.chats("chinese")]
    questions = [q for q in packages.tool_questions() if len(str(q[1])) < 2_500]

    def bfcl(rng: random.Random) -> Dialogue:
        return published(rng, *rng.choice(questions))

    return {
        "talk": talk.draw,
        "story": talk.story,
        "chatterbot": lambda rng: talk.chat_of(rng, rng.choice(chats)[1]),
        "facts": lambda rng: facts.draw(rng, tables),
        "sums": sums.draw,
        "paper": sums.paper,
        "recall": lambda rng: recall.draw(rng, filler),
        "far": lambda rng: recall.far(rng, filler),
        "echo": lambda rng: recall.echo(rng, filler),
        "objects": objects.draw,
        "calls": calls.draw,
        "asked": calls.asked,
        "bfcl": bfcl,
    }


def sentences(packages: Packages) -> list[str]:
    """Plain sentences to fill long texts with."""
    examples = {s.example for s in packages.senses() if s.example.count(" ") >= 3}
    told = {a for _, answers in pairs("chat_en") for a in answers if "\n" not in a}
    found = [f"{e[0].upper()}{e[1:].rstrip('.')}." for e in examples if not BANNED_WORDS.search(e)]
    return sorted({*found, *told})


def published(
    rng: random.Random,
    question: str,
    functions: list[dict[str, object]],
    truth: list[dict[str, object]],
) -> Dialogue:
    """A question of BFCL with one of its accepted answers."""
    tools = [
        Tool(str(f["name"]), str(f.get("description", "")), plain_schema(f["parameters"]))
        for f in functions
    ]
    made: list[tuple[str, calls.Values]] = []
    for call in truth:
        for name, accepted in call.items():
            assert isinstance(accepted, dict)
            made.append((name, {k: v[0] for k, v in accepted.items() if v and v[0] != ""}))
    return calls.given(question, tools, made, rng)


_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


def plain_schema(schema: object) -> object:
    """A schema with JSON Schema's names of types."""
    if isinstance(schema, dict):
        plain = {k: plain_schema(v) for k, v in schema.items()}
        kind = plain.get("type")
        if isinstance(kind, str):
            plain["type"] = _TYPES.get(kind, kind)
        return plain
    return [plain_schema(x) for x in schema] if isinstance(schema, list) else schema


def draws(name: str, draw: Draw, count: int, tokenizer: Tokenizer, seed: int) -> Iterator[Document]:
    """Documents of a source that are not too long."""
    for number in range(count):
        made = document(draw(random.Random(f"{seed}/{name}/{number}")), tokenizer)
        if len(made.ids) <= MAX_TOKENS:
            yield made


def taught(file: Path, seed: int) -> Iterator[Dialogue]:
    """What the teacher said, one or two questions a dialogue."""
    rng = random.Random(f"{seed}/{file.stem}")
    pairs_left = [json.loads(line) for line in file.read_text().splitlines()]
    while pairs_left:
        picked = [pairs_left.pop() for _ in range(min(rng.choice((1, 1, 2)), len(pairs_left)))]
        yield talk.chat_of(rng, [text for pair in picked for text in pair])


def is_held_out(made: Document) -> bool:
    return hashlib.blake2b(made.ids.tobytes(), digest_size=2).digest()[0] < 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, help="folder of archives")
    parser.add_argument("--teacher", type=Path, help="only this: what the teacher said, .jsonl")
    parser.add_argument("--model", type=Path, required=True, help="folder of the tokenizer")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mix", choices=list(MIXES), default="whole")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of documents")
    parser.add_argument("--only", nargs="*", help="sources to draw")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.load(options.model)
    if options.teacher:
        told = [document(d, tokenizer) for d in taught(options.teacher, options.seed)]
        store(options.out, options.teacher.stem, told)
        return
    drawn = sources(Packages(options.packages))
    counts = MIXES[options.mix]
    for name in options.only or counts:
        count = int(counts[name] * options.scale)
        made = draws(name, drawn[name], count, tokenizer, options.seed)
        store(options.out, name, list(track(made, description=name, total=count)))


def store(folder: Path, name: str, every: Sequence[Document]) -> None:
    """The documents as two shards: to train on, and held out."""
    held_out = [d for d in every if is_held_out(d)]
    shards.save(folder / f"{name}.npz", [d for d in every if not is_held_out(d)])
    if held_out:
        shards.save(folder / f"{shards.HELD_OUT}{name}.npz", held_out)
    print(f"{name}: {len(every):,} documents, {sum(len(d.ids) for d in every):,} tokens")


if __name__ == "__main__":
    main()
