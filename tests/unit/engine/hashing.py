"""A model that remembers as the real one does and computes almost nothing.

Every position leaves an encoder value in its block, which depends on the encoder values in its
window, and a decoder value in its slot, which depends on all entries so far and on the decoder
values in its window. Whoever reads a wrong page, a stale record, or a window with a gap computes
other tokens from there on. `isolated` says what a request gets alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diptych.core.request import Generation
from diptych.engine.futures import TokenFutures
from diptych.engine.ledger import Outcome
from diptych.engine.requests import Bounds
from diptych.engine.scheduler import Limits, Piece, Plan

Words = NDArray[np.uint64]

_MASK = 2**64 - 1
_POWERS = np.cumprod(np.full(4096, 0x9E3779B97F4A7C15, np.uint64))


def mix(*words: int) -> int:
    state = 0x243F6A8885A308D3
    for word in words:
        state = ((state ^ word) * 0xD6E8FEB86659FD93) & _MASK
        state ^= state >> 32
    return state


def encode(token: int, window: Sequence[int]) -> int:
    """The encoder value of a position, from those before it in its window, oldest first."""
    return mix(token, *window)


def decode(entries: Words, window: Sequence[int]) -> int:
    """The decoder value of a position, from all entries up to it."""
    return mix(int((entries * _POWERS[: len(entries)]).sum()), *window)


def say(value: int, seed: int, vocab_size: int) -> int:
    return mix(value, seed) % vocab_size


def isolated(generation: Generation, bounds: Bounds, limits: Limits) -> tuple[int, ...]:
    """The tokens of a generation behind those that are forced."""
    how, reach = generation.sampling, limits.window - 1
    floor = limits.floor(len(generation.prompt))
    tokens = list(generation.tokens)
    encoded: list[int] = []
    decoded: list[int] = []
    while True:
        for position in range(len(encoded), len(tokens)):
            encoded.append(encode(tokens[position], encoded[max(0, position - reach) : position]))
            below = max(floor, position - reach)
            value = 0
            if position >= floor:
                value = decode(np.array(encoded, np.uint64), decoded[below:position])
            decoded.append(value)
        token = say(decoded[-1], how.seed, bounds.vocab_size)
        tokens.append(token)
        num_output = len(tokens) - len(generation.prompt)
        is_stop = token in how.stop_token_ids or (
            token == bounds.eos_token_id and not how.ignore_eos
        )
        is_long = num_output >= generation.max_new or len(tokens) >= bounds.max_model_len
        if is_stop or is_long:
            return tuple(tokens[len(generation.tokens) :])


@dataclass(slots=True)
class Step:
    plan: Plan
    known: list[list[int]]  # the tokens of each piece, but for an unknown one
    last: dict[int, int]  # the decoder value of a piece's last row


class HashingRunner:
    """Executes plans over pages of words. All pages begin with garbage."""

    def __init__(
        self,
        bounds: Bounds,
        limits: Limits,
        num_blocks: int,
        num_slots: int,
        num_anchors: int = 0,
        num_host_blocks: int = 0,
        num_host_slots: int = 0,
        fails: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`fails` says of each forward how far it gets before it breaks, 0 to 1, if it does."""
        self.fails = fails
        self.bounds = bounds
        self.limits = limits
        self.ring = limits.window + 1
        garbage = np.random.default_rng(7)

        def pages(*shape: int) -> Words:
            return garbage.integers(0, 2**63, shape, np.uint64)

        self.blocks = pages(num_blocks + 1, limits.grain)
        self.slots = pages(num_slots + 1, 2, self.ring)  # encoder, decoder
        self.anchors = pages(num_anchors, limits.window)
        self.host_blocks = pages(num_host_blocks, limits.grain)
        self.host_slots = pages(num_host_slots, 2, self.ring)
        self.futures = TokenFutures(num_slots)

    def block(self, page: int) -> Words:
        return self.blocks[page]

    def slot(self, slot: int) -> Words:
        return self.slots[slot]

    def begin(self, plan: Plan) -> Step:
        return Step(plan, [p.request.tokens[p.start : p.end] for p in plan.pieces], {})

    def forward(self, step: Step) -> None:
        part = self.fails()
        if part == 0:
            raise RuntimeError("broken before anything was done")
        self._execute(step)
        if part is not None:
            for piece in step.plan.pieces[round(len(step.plan.pieces) * part) :]:
                self._spoil(piece)
            raise RuntimeError("broken behind its last row")

    def _execute(self, step: Step) -> None:
        plan = step.plan
        for swap in plan.swap_ins:
            self.blocks[list(swap.blocks)] = self.host_blocks[list(swap.host_blocks)]
            self.slots[swap.slot] = self.host_slots[swap.host_slot]
        for anchor in plan.loads:
            records = self._window_records(anchor.position)
            self.slots[anchor.slot, 0, records] = self.anchors[anchor.page, -len(records) :]
        for index, piece in enumerate(plan.pieces):
            tokens = list(step.known[index])
            if piece.unknown:
                tokens += self.futures.read(plan.step - 1, np.array([piece.slot])).tolist()
            assert len(tokens) == piece.count, (piece, tokens)
            step.last[index] = self._compute(piece, tokens)
        for anchor in plan.saves:
            records = self._window_records(anchor.position)
            self.anchors[anchor.page, -len(records) :] = self.slots[anchor.slot, 0, records]
        for swap in plan.swap_outs:
            self.host_blocks[list(swap.host_blocks)] = self.blocks[list(swap.blocks)]
            self.host_slots[swap.host_slot] = self.slots[swap.slot]

    def sample(self, step: Step, chosen: Sequence[int]) -> list[Outcome]:
        tokens: list[Outcome] = []
        for index in chosen:
            piece = step.plan.pieces[index]
            assert len(piece.request.tokens) == piece.end, "all tokens before a sample are known"
            seed = piece.request.generation.sampling.seed
            token = say(step.last[index], seed, self.bounds.vocab_size)
            self.futures.write(step.plan.step, piece.slot, token)
            tokens.append(token)
        return tokens

    def _compute(self, piece: Piece, tokens: Sequence[int]) -> int:
        encoder, decoder = self.slots[piece.slot]
        grain, value = self.limits.grain, 0
        for position, token in enumerate(tokens, piece.start):
            encoded = encode(token, self._window(encoder, position, piece.encoder_floor))
            encoder[position % self.ring] = encoded
            if position >= piece.start + piece.replayed:
                self.blocks[piece.blocks[position // grain], position % grain] = encoded
            if position >= piece.floor:
                entries = self.blocks[list(piece.blocks)].reshape(-1)[: position + 1]
                value = decode(entries, self._window(decoder, position, piece.floor))
                decoder[position % self.ring] = value
        return value

    def _spoil(self, piece: Piece) -> None:
        """What a broken forward leaves in the pages that are its own to write."""
        grain = self.limits.grain
        self.slots[piece.slot] = 0xBAD
        for position in range(piece.start + piece.replayed, piece.end):
            self.blocks[piece.blocks[position // grain], position % grain] = 0xBAD

    def _window(self, ring: Words, position: int, floor: int) -> list[int]:
        below = max(floor, position - self.limits.window + 1, 0)
        return [int(ring[p % self.ring]) for p in range(below, position)]

    def _window_records(self, position: int) -> list[int]:
        known = range(max(0, position - self.limits.window), position)
        return [p % self.ring for p in known]
