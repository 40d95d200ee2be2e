"""The engine in-process: the same scheduler, pools and runner, without thread or network."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diptych.core.errors import BadRequest, Broken, Misconfigured
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Row, StepOutput
from diptych.engine.build import build_parts
from diptych.engine.options import Options
from diptych.engine.requests import Request, check
from diptych.engine.scheduler import Piece
from diptych.text import tokenizer
from diptych.text.markers import Marker

Prompt = str | Sequence[int]

DEFAULT_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one prompt."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish: Finish


class LLM:
    """A model to call from Python. Not thread-safe."""

    def __init__(
        self,
        checkpoint: Path | str,
        device: str = "cpu",
        numerics: str = "served",
        replay: str = "compact",
        *,
        deterministic: bool = True,
        async_stepping: bool = False,
        max_model_len: int | None = None,
        block_tokens: int = 128,
        num_blocks: int | None = None,
        num_anchors: int | None = None,
        max_num_seqs: int = 64,
        max_batch_tokens: int = 512,
    ) -> None:
        """`replay` is for `generate`: which rows of a prompt the decoder layers compute.

        With "off" nothing is left out, nor any id banned: that is how golden data was made.
        """
        if device != "cpu":
            raise Misconfigured(f"device is {device!r}; expected 'cpu', the only one so far")
        self._checkpoint = Path(checkpoint)
        options = Options(
            numerics=numerics,
            replay=replay,
            deterministic=deterministic,
            async_stepping=async_stepping,
            block_tokens=block_tokens,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max_batch_tokens,
            num_blocks=num_blocks,
            num_anchors=num_anchors,
            placeholders=replay == "off",
        )
        self._parts = build_parts(
            self._checkpoint, model_name=self._checkpoint.name, options=options
        )
        self._stepper = self._parts.stepper
        self._tokenizer = tokenizer.load(self._checkpoint)
        self._calls = 0

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] = DEFAULT_SAMPLING,
        max_new: int = 64,
        on_step: Callable[[StepOutput], None] = lambda output: None,
    ) -> list[Completion]:
        """Continue every prompt by up to `max_new` tokens; all of them run in one batch.

        Strings are encoded as they are, with a start token in front. `on_step` sees the tokens of
        each step as they come.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if len(each) != len(prompts):
            raise BadRequest(f"{len(each)} samplings for {len(prompts)} prompts", param="sampling")
        call = self._next_call()
        generations = [
            Generation(Key(f"{call}-{i}", 1), self.encode(prompt), how, max_new)
            for i, (prompt, how) in enumerate(zip(prompts, each, strict=True))
        ]
        rows: dict[Key, list[Row]] = {g.key: [] for g in generations}

        def hear(output: StepOutput) -> None:
            for row in output.rows:
                rows[row.key].append(row)
            on_step(output)

        ledger = self._parts.ledger
        try:
            for generation in generations:
                ledger.submit(generation, hold=False, now_s=time.monotonic())
            while self._stepper.step(hear):
                pass
            assert not ledger.has_work, "nothing runs, and yet the queue does not move"
        finally:
            for generation in generations:
                ledger.drop(generation.key)
            self._stepper.settle(lambda output: None)
        return [self._completion(g, rows[g.key]) for g in generations]

    def logits(self, token_ids: Sequence[int], chunk: int | None = None) -> Tensor:
        """Logits at every position [tokens, vocab]; computed `chunk` positions at a time."""
        generation = Generation(
            Key(self._next_call(), 1), self.encode(token_ids), DEFAULT_SAMPLING, max_new=1
        )
        ledger = self._parts.ledger
        check(generation, ledger.bounds)
        tokens = generation.prompt
        size = chunk or ledger.limits.max_batch_tokens
        pages = ledger.reserve(generation.key, len(tokens))
        assert pages is not None, "between calls all pages are free"
        request = Request(
            generation,
            hold=False,
            adopted=False,
            capacity=len(tokens),
            tokens=list(tokens),
            blocks=pages.blocks,
            slot=pages.slot,
        )
        try:
            return torch.cat(
                [
                    self._parts.runner.logits([Piece.of(request, at, min(size, len(tokens) - at))])
                    for at in range(0, len(tokens), size)
                ]
            )
        finally:
            ledger.drop(generation.key)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt."""
        if isinstance(prompt, str):
            return self._tokenizer.encode([Marker.BOS, prompt])
        return tuple(prompt)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids; special tokens are not shown."""
        return b"".join(map(self._tokenizer.token_bytes, token_ids)).decode(errors="replace")

    def _completion(self, generation: Generation, rows: Sequence[Row]) -> Completion:
        last = rows[-1]
        assert last.finish is not None, "the engine went idle before a sequence ended"
        if last.finish is Finish.ERROR:
            raise Broken(f"{generation.key}: {last.message}")
        token_ids = tuple(token for row in rows for token in row.token_ids)
        return Completion(generation.prompt, token_ids, self.decode(token_ids), last.finish)

    def _next_call(self) -> str:
        self._calls += 1
        return f"offline-{self._calls}"
