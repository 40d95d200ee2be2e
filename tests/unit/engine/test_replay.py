"""Bounded replay through the tiny model: which rows a layer computes never changes what they give.

A prompt's rows below R = length - KEEP stop at the border; `mask` computes them all the same, and
`compact` does not. A prefix may also come from blocks that another sequence wrote, with the
windows of an anchor or with windows that are replayed.
"""

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from diptych.core.layout import Kind, Pool
from diptych.engine.anchors import AnchorCopy
from diptych.engine.arenas import Arenas
from diptych.engine.arrangement import arrange
from diptych.engine.batch import Batch
from diptych.engine.pages import PagedMemory
from diptych.engine.requests import Request, blocks_for
from diptych.engine.scheduler import Piece
from diptych.model import decoder, weights
from diptych.model.numerics import NUMERICS
from diptych.model.records import Records
from diptych.model.spec import ModelSpec
from diptych.model.weights import Weights

from .conftest import TINY, make_generation

SPEC = ModelSpec.load(TINY)
GRAIN = 8
KEEP = SPEC.window + 12
LONGEST = 200
MODES = ["exact", "cache", "served"]
GARBAGE = b"\xff"  # NaN in every record format

load = functools.cache(lambda mode: weights.load(TINY, SPEC, NUMERICS[mode]))


@dataclass
class Machine:
    """Pages full of garbage, and a model that runs pieces on them."""

    mode: str = "exact"
    compact: bool = True
    num_anchors: int = 2
    num_slots: int = 0
    free: list[int] = field(default_factory=lambda: list(range(1, 200)))

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.numerics = NUMERICS[self.mode]
        self.weights: Weights = load(self.mode)
        layout = arrange(SPEC, self.numerics, GRAIN)
        self.arenas = Arenas(layout, len(self.free), 8, self.num_anchors)
        for page in self.free:
            self.arenas.block(page)[:] = GARBAGE * layout.block_bytes
        for slot in range(1, 9):
            self.arenas.slot(slot)[:] = GARBAGE * layout.slot_bytes
        random.Random(0).shuffle(self.free)

    def admit(
        self,
        prompt: Sequence[int],
        *,
        forced: Sequence[int] = (),
        blocks: tuple[int, ...] = (),
        floor: int | None = None,
    ) -> Request:
        """A sequence with a slot, and with blocks behind those that it shares."""
        self.num_slots += 1
        own = [self.free.pop() for _ in range(blocks_for(LONGEST, GRAIN) - len(blocks))]
        generation = make_generation(f"s{self.num_slots}", prompt=tuple(prompt))
        return Request(
            generation,
            False,
            False,
            LONGEST,
            [*prompt, *forced],
            blocks=(*blocks, *own),
            slot=self.num_slots,
            floor=max(len(prompt) - KEEP, 0) if floor is None else floor,
        )

    @torch.inference_mode()
    def run(self, *pieces: Piece) -> list[dict[int, Tensor]]:
        """The logits of each piece's rows, by position; a compact batch has those it kept."""
        batch = Batch(pieces, GRAIN, compact=self.compact)
        records = Records.of(SPEC, self.numerics)
        memory = PagedMemory(self.arenas, records, SPEC.window, batch)
        rows = batch.rows(self.weights.hashing)
        hidden = decoder.hidden(SPEC, self.weights, self.numerics, rows, memory)
        assert len(hidden) == batch.behind.padded
        logits = decoder.logits(self.weights, self.numerics, hidden)
        found: list[dict[int, Tensor]] = [{} for _ in pieces]
        for row in range(batch.behind.num_rows):
            owner, position = batch.behind.owners[row], int(batch.behind.positions[row])
            found[owner][position] = logits[row]
        return found

    def prefill(
        self, request: Request, sizes: Sequence[int] = (), start: int = 0
    ) -> dict[int, Tensor]:
        """Compute a sequence's tokens in chunks of these sizes, the last one all that is left."""
        found: dict[int, Tensor] = {}
        for size in (*sizes, LONGEST):
            count = min(size, len(request.tokens) - start)
            if count:
                found |= self.run(Piece.of(request, start, count))[0]
            start += count
        return found

    def decode(self, request: Request, tokens: Sequence[int]) -> dict[int, Tensor]:
        """Append one token after the other; the logits behind each, by position."""
        found: dict[int, Tensor] = {}
        for token in tokens:
            request.tokens.append(token)
            found |= self.run(Piece.of(request, len(request.tokens) - 1, 1))[0]
        return found

    def ring(self, request: Request, layer: int, start: int, end: int) -> Tensor:
        """Window records of some positions of a sequence."""
        section = self.arenas.section(layer, Kind.WINDOW)[request.slot]
        return section[torch.arange(start, end) % self.arenas.layout.ring]

    def sections(self, request: Request, end: int) -> list[Tensor]:
        """Entries and index keys of the positions before `end`, of every compressed cache."""
        pages = torch.tensor(request.blocks)
        return [
            self.arenas.section(entry.layer, entry.kind)[pages].flatten(0, 1)[: end // entry.ratio]
            for entry in self.arenas.layout.entries
            if entry.pool is Pool.BLOCK
        ]


def random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, SPEC.vocab_size) for _ in range(length)]


def random_cuts(rng: random.Random, length: int) -> list[int]:
    """Chunk sizes, short and long, that leave one row for the last chunk."""
    sizes: list[int] = []
    while sum(sizes) < length - 1:
        sizes.append(min(rng.choice([1, 2, 7, 16, 30, 64]), length - 1 - sum(sizes)))
    return sizes


def equal(found: dict[int, Tensor], expected: dict[int, Tensor]) -> bool:
    """Whether there are rows in `found`, and in `expected` they have the same bits."""
    return bool(found) and all(torch.equal(row, expected[p]) for p, row in found.items())


LENGTHS = [1, KEEP - 1, KEEP, KEEP + 1, 2 * KEEP, 150, "short", "long"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", LENGTHS)
def test_masked_and_compact_rows_have_the_same_bits_however_a_prompt_is_cut(
    mode: str, length: int | str, rng: random.Random
) -> None:
    drawn = {"short": rng.randint(1, 2 * KEEP), "long": rng.randint(2 * KEEP, 180)}
    count = length if isinstance(length, int) else drawn[length]
    prompt, output = random_prompt(rng, count), random_prompt(rng, 3)
    start = max(count - KEEP, 0)

    def run(compact: bool, cuts: Sequence[int]) -> tuple[dict[int, Tensor], list[Tensor]]:
        machine = Machine(mode, compact)
        request = machine.admit(prompt)
        found = machine.prefill(request, cuts)
        newest = max(count - machine.arenas.layout.ring, 0)
        rings = [
            machine.ring(request, layer, max(newest, start if layer >= 5 else 0), count)
            for layer in range(SPEC.num_layers)
        ]
        found |= machine.decode(request, output)
        blocks = machine.sections(request, count)
        return found, [*rings, *blocks]

    masked, its_state = run(False, ())
    assert set(masked) == set(range(count + 3))
    for cuts in ((), random_cuts(rng, count), [8] * (count // 8)):
        compact, my_state = run(True, cuts)
        assert set(compact) == set(range(start, count + 3))
        assert equal(compact, masked)
        assert all(map(torch.equal, my_state, its_state))


def test_a_prompt_up_to_keep_is_computed_whole(rng: random.Random) -> None:
    prompt = random_prompt(rng, KEEP)
    whole, replayed = Machine(), Machine()
    expected = whole.prefill(whole.admit(prompt, floor=0))
    assert equal(replayed.prefill(replayed.admit(prompt), [5, 20]), expected)


def test_replay_changes_a_long_prompt_a_little_and_its_cache_not_at_all(
    rng: random.Random,
) -> None:
    prompt = random_prompt(rng, 150)
    machine = Machine()
    whole, replayed = machine.admit(prompt, floor=0), machine.admit(prompt)
    expected, found = machine.prefill(whole), machine.prefill(replayed)
    assert not torch.equal(found[149], expected[149])
    assert torch.cosine_similarity(found[149], expected[149], dim=0) > 0.9
    sections = zip(machine.sections(whole, 150), machine.sections(replayed, 150), strict=True)
    assert all(torch.equal(*pair) for pair in sections)


@pytest.mark.parametrize("compact", [False, True])
def test_a_chunk_below_the_floor_leaves_nothing_in_the_windows_of_the_decoder(
    compact: bool, rng: random.Random
) -> None:
    machine = Machine(compact=compact)
    request = machine.admit(random_prompt(rng, 100))
    assert len(machine.run(Piece.of(request, 0, 40))[0]) == (0 if compact else 40)
    for layer in range(SPEC.decoder_start, SPEC.num_layers):
        assert (machine.arenas.section(layer, Kind.WINDOW)[request.slot] == GARBAGE[0]).all()
    border = machine.arenas.section(SPEC.decoder_start, Kind.ENTRY)
    assert all((border[page] != GARBAGE[0]).any() for page in request.blocks[:5])


@pytest.mark.parametrize("compact", [False, True])
def test_sequences_of_a_batch_do_not_see_each_others_floors(
    compact: bool, rng: random.Random
) -> None:
    machine = Machine("served", compact, num_anchors=0)
    prompts = [random_prompt(rng, n) for n in (1, 20, KEEP + 3, 90, 140)]
    alone = []
    for prompt in prompts:
        single = Machine("served")
        alone.append(single.prefill(single.admit(prompt)))
    requests = [machine.admit(prompt) for prompt in prompts]
    starts = [0] * len(requests)
    while True:
        pieces = []
        for i, request in enumerate(requests):
            left = len(request.tokens) - starts[i]
            count = min(rng.choice([0, 1, 3, 33, 60]), left)
            if count:
                pieces.append(Piece.of(request, starts[i], count))
                starts[i] += count
        if not any(len(r.tokens) > at for r, at in zip(requests, starts, strict=True)):
            break
        if not pieces:
            continue
        for piece, found in zip(pieces, machine.run(*pieces), strict=True):
            kept = {p: row for p, row in found.items() if p >= piece.floor}
            assert not kept or equal(kept, alone[requests.index(piece.request)])


@pytest.mark.parametrize("mode", MODES)
def test_several_rows_at_once_behind_a_chunk_of_one_row_are_those_of_one_after_the_other(
    mode: str, rng: random.Random
) -> None:
    prompt, output = random_prompt(rng, 73), random_prompt(rng, SPEC.draft_tokens + 1)
    machine = Machine(mode)
    first, second = machine.admit(prompt), machine.admit(prompt)
    expected = machine.prefill(first, [72]) | machine.decode(first, output)
    machine.prefill(second, [40, 32])
    second.tokens += output
    found = machine.run(Piece.of(second, 73, len(output)))[0]
    assert len(found) == len(output)
    assert equal(found, expected)


def cold(machine: Machine, prompt: list[int], hit: int) -> tuple[Request, dict[int, Tensor]]:
    """A prompt computed from its start, with an anchor saved at `hit` into page 0."""
    request = machine.admit(prompt)
    found = machine.run(Piece.of(request, 0, hit))[0]
    machine.arenas.save_anchor(AnchorCopy(request.slot, page=0, position=hit))
    return request, found | machine.prefill(request, start=hit)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hit", [8, 16, 24, 64, 120])
def test_a_hit_with_an_anchor_gives_what_a_cold_run_gives(
    mode: str, hit: int, rng: random.Random
) -> None:
    length = hit + KEEP + rng.randrange(GRAIN)
    prompt, output = random_prompt(rng, length), random_prompt(rng, 3)
    machine = Machine(mode)
    source, expected = cold(machine, prompt, hit)
    expected |= machine.decode(source, output)
    shared = source.blocks[: hit // GRAIN]
    before = [bytes(machine.arenas.block(page)) for page in shared]
    request = machine.admit(prompt, blocks=shared)
    machine.arenas.load_anchor(AnchorCopy(request.slot, page=0, position=hit))
    found = machine.prefill(request, random_cuts(rng, length - hit), start=hit)
    assert set(found) == set(range(length - KEEP, length))
    assert equal(found | machine.decode(request, output), expected)
    assert [bytes(machine.arenas.block(page)) for page in shared] == before
    state = zip(machine.sections(source, length), machine.sections(request, length), strict=True)
    assert all(torch.equal(*pair) for pair in state)


def test_an_anchor_of_the_source_serves_a_hit_that_goes_on_differently(rng: random.Random) -> None:
    prompt = random_prompt(rng, 64)
    machine = Machine("served")
    source, _ = cold(machine, prompt + random_prompt(rng, 60), 64)
    other = prompt + random_prompt(rng, 50)
    alone = Machine("served")
    expected = alone.prefill(alone.admit(other))
    request = machine.admit(other, blocks=source.blocks[: 64 // GRAIN])
    machine.arenas.load_anchor(AnchorCopy(request.slot, page=0, position=64))
    assert equal(machine.prefill(request, start=64), expected)


def replay(
    machine: Machine, request: Request, hit: int, start: int, sizes: Sequence[int]
) -> dict[int, Tensor]:
    """Prefill behind a hit whose windows are rebuilt from position `start` on."""
    request.encoder_floor = start
    found: dict[int, Tensor] = {}
    at = start
    for size in (*sizes, LONGEST):
        count = min(size, len(request.tokens) - at)
        replayed = min(max(hit - at, 0), count)
        if count:
            piece = replace(Piece.of(request, at, count), replayed=replayed)
            found |= machine.run(piece)[0]
        at += count
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [SPEC.window, SPEC.window + 5])
def test_windows_can_be_rebuilt_without_an_anchor_and_without_touching_the_cache(
    mode: str, rows: int, rng: random.Random
) -> None:
    hit, length = 64, 64 + KEEP + 3
    prompt, output = random_prompt(rng, length), random_prompt(rng, 20)
    machine = Machine(mode)
    source, expected = cold(machine, prompt, hit)
    expected |= machine.decode(source, output)
    shared = source.blocks[: hit // GRAIN]
    before = [bytes(machine.arenas.block(page)) for page in shared]
    found = []
    for sizes, garbage in (((), b"\xff"), ((5, rows, 3), b"\x42")):
        request = machine.admit(prompt, blocks=shared)
        machine.arenas.slot(request.slot)[:] = garbage * machine.arenas.layout.slot_bytes
        rebuilt = replay(machine, request, hit, hit - rows, sizes)
        found.append(rebuilt | machine.decode(request, output))
        assert [bytes(machine.arenas.block(page)) for page in shared] == before
    assert equal(*found)
    assert set(found[0]) == set(range(length - KEEP, length + 20))
    for position, row in found[0].items():
        assert torch.cosine_similarity(row, expected[position], dim=0) > 0.9


def test_replay_from_the_start_is_exact(rng: random.Random) -> None:
    prompt = random_prompt(rng, 40 + KEEP)
    machine = Machine("served")
    source, expected = cold(machine, prompt, 40)
    request = machine.admit(prompt, blocks=source.blocks[:5])
    assert equal(replay(machine, request, 40, 0, [11, 18]), expected)


def test_forced_tokens_run_through_all_layers_behind_the_floor_of_their_prompt(
    rng: random.Random,
) -> None:
    prompt, output = random_prompt(rng, 90), random_prompt(rng, 40)
    machine = Machine("served")
    first = machine.admit(prompt)
    expected = machine.prefill(first) | machine.decode(first, output)
    again = machine.admit(prompt, forced=output)
    found = machine.prefill(again, [64, 50])
    assert set(found) == set(range(90 - KEEP, 130))
    assert equal(found, expected)
    more = random_prompt(rng, 2)
    assert equal(machine.decode(again, more), machine.decode(first, more))
