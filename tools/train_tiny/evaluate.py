"""Examine the bundled model: `make eval`. Greedy, in served numerics, without grammar."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch.nn import functional as F

from diptych.core.phases import Finish
from diptych.core.sampling import Sampling
from diptych.core.step import StepOutput
from diptych.offline import LLM, Completion
from diptych.text import tokenizer as tokenizers
from diptych.text.opening import opening_of
from diptych.text.parser import Parser
from diptych.text.pieces import CallArguments, CallEnd, CallStart, Section, Text
from diptych.text.tokenizer import Tokenizer
from train_tiny import shards
from train_tiny.dialogue import prompt_of
from train_tiny.examination import Answer, Question, questions
from train_tiny.shards import Document

HELD_OUT = Path(__file__).parent / "held_out.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = resources.files("diptych") / "assets" / "tiny"
    parser.add_argument("--checkpoint", type=Path, default=Path(str(default)))
    parser.add_argument("--numerics", default="served", choices=["served", "cache", "exact"])
    parser.add_argument("--show", action="store_true", help="print what was answered wrongly")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began_s = time.monotonic()
    llm = LLM(options.checkpoint, numerics=options.numerics)
    tokenizer = tokenizers.load(options.checkpoint)
    asked = list(questions())
    console = Console()
    answers = answer(llm, tokenizer, asked, console)
    scores: dict[str, list[bool]] = {}
    for question, given in zip(asked, answers, strict=True):
        verdicts = question.judge(given)
        for measure, right in verdicts.items():
            scores.setdefault(measure, []).append(right)
        if options.show and not all(verdicts.values()):
            console.print(
                f"{verdicts}\n  {question.dialogue.messages[-2].content!s:.300}\n  {given}"
            )
    table = Table("measure", "items", "result")
    held_out = measured(llm, shards.load(HELD_OUT))
    loss, tokens = held_out.loss, held_out.tokens
    table.add_row("loss on held-out answers, nats a token", f"{tokens:,} tokens", f"{loss:.3f}")
    for measure, rights in scores.items():
        table.add_row(measure, str(len(rights)), f"{100 * sum(rights) / len(rights):.0f} %")
    console.print(table)
    console.print(f"{time.monotonic() - began_s:.0f} s")


def answer(
    llm: LLM, tokenizer: Tokenizer, asked: Sequence[Question], console: Console
) -> list[Answer]:
    """Every question answered, short ones and long ones apart, many at a time."""
    prompts = [tokenizer.encode(prompt_of(q.dialogue)) for q in asked]
    order = sorted(range(len(asked)), key=lambda i: (asked[i].max_tokens, len(prompts[i])))
    answers: dict[int, Answer] = {}
    with Progress(console=console) as progress:
        task = progress.add_task("answering", total=len(asked))

        def on_step(output: StepOutput) -> None:
            progress.advance(task, sum(row.finish is not None for row in output.rows))

        for at in range(0, len(order), 32):
            chosen = order[at : at + 32]
            most = max(asked[i].max_tokens for i in chosen)
            batch = [prompts[i] for i in chosen]
            done = llm.generate(batch, Sampling(temperature=0.0), most, on_step)
            for i, completion in zip(chosen, done, strict=True):
                answers[i] = parsed(completion, asked[i], tokenizer)
    return [answers[i] for i in range(len(asked))]


def parsed(completion: Completion, question: Question, tokenizer: Tokenizer) -> Answer:
    """A completion as a client would see it."""
    opening = opening_of(prompt_of(question.dialogue))
    parser = Parser(tokenizer, opening, tools=question.dialogue.tools)
    pieces = [p for token in completion.token_ids for p in parser.push(token)]
    pieces += parser.finish(cut=completion.finish is Finish.LENGTH)
    texts = dict.fromkeys(Section, "")
    begun: dict[int, tuple[str, str]] = {}
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        match piece:
            case Text():
                texts[piece.section] += piece.text
            case CallStart():
                begun[piece.index] = (piece.name, "")
            case CallArguments():
                name, arguments = begun[piece.index]
                begun[piece.index] = (name, arguments + piece.text)
            case CallEnd():
                calls.append(begun[piece.index])
    return Answer(
        text=texts[Section.CONTENT],
        reasoning=texts[Section.REASONING],
        calls=tuple(calls),
        finished=completion.finish is not Finish.LENGTH,
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """Of what the assistant says: mean loss in nats a token, share of tokens hit, and how many."""

    loss: float
    hit: float
    tokens: int


def measured(llm: LLM, documents: Sequence[Document]) -> Measured:
    """How well a model foretells what the assistant says in documents."""
    losses, hits = [], []
    for document in documents:
        ids = torch.from_numpy(document.ids.astype("int64"))
        logits = llm.logits(ids.tolist())[:-1]
        said = torch.from_numpy(document.learn[1:]).bool()
        losses.append(F.cross_entropy(logits, ids[1:], reduction="none")[said])
        hits.append((logits.argmax(1) == ids[1:])[said])
    loss, hit = torch.cat(losses), torch.cat(hits)
    assert torch.isfinite(loss).all()
    return Measured(loss.mean().item(), hit.float().mean().item(), len(hit))


if __name__ == "__main__":
    main()
