"""An engine without a model: tokens and page bytes are hashes of the text so far.

It keeps the port's promises (pages, holds, reservations, counts), so services, gateway and router
can be tested against it; and it checks what it adopts: pages whose bytes are not those of the
text end the row with an error.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from diptych.core.blocks import namespace, pack_ids
from diptych.core.errors import BadRequest, Broken
from diptych.core.ids import Key
from diptych.core.layout import Kind, Layout, Pool, Section, make_layout
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.step import Chunk, Row, StepOutput
from diptych.engine.block_log import BlockLog
from diptych.engine.port import Counts, Pages

EOS = 1
FIRST_TOKEN = 3
GRAIN = 8


@dataclass(frozen=True, slots=True)
class Script:
    """How the engine behaves. `eos_every` n: one token in n is the end of the text; 0 = none."""

    num_blocks: int = 256
    num_slots: int = 32
    max_model_len: int = 4096
    chunk_tokens: int = 64
    step_s: float = 0.0
    vocab_size: int = 384
    eos_every: int = 0
    block_bytes: int = 1024
    slot_bytes: int = 4096
    model: str = "scripted"


@dataclass(slots=True)
class _Sequence:
    generation: Generation
    pages: Pages
    hold: bool
    tokens: list[int]
    computed: int = 0  # positions written
    output: int = 0


@dataclass(slots=True)
class _Pools:
    blocks: list[int]
    slots: list[int]
    taken: dict[Key, Pages] = field(default_factory=dict)

    def take(self, key: Key, positions: int) -> Pages | None:
        count = -(-positions // GRAIN)
        if len(self.blocks) < count or not self.slots:
            return None
        pages = Pages(tuple(self.blocks.pop() for _ in range(count)), self.slots.pop(), positions)
        self.taken[key] = pages
        return pages

    def free(self, key: Key) -> bool:
        pages = self.taken.pop(key, None)
        if pages is None:
            return False
        self.blocks.extend(pages.blocks)
        self.slots.append(pages.slot)
        return True


class ScriptedEngine:
    """An `EnginePort` on the event loop itself: one step a turn while there is work."""

    def __init__(self, on_step: Callable[[StepOutput], None], script: Script | None = None) -> None:
        self.script = script or Script()
        self._on_step = on_step
        s = self.script
        self._layout = make_layout(
            (
                Section(Pool.BLOCK, 0, Kind.ENTRY, s.block_bytes // GRAIN, GRAIN, ratio=1),
                Section(Pool.SLOT, 0, Kind.WINDOW, s.slot_bytes // GRAIN, GRAIN),
            ),
            grain=GRAIN,
            ring=GRAIN,
            numerics="scripted",
        )
        self._blocks = bytearray(s.num_blocks * self._layout.block_bytes)
        self._slots = bytearray(s.num_slots * self._layout.slot_bytes)
        self._pools = _Pools(list(range(s.num_blocks)), list(range(s.num_slots)))
        self._waiting: deque[tuple[Generation, bool]] = deque()
        self._running: dict[Key, _Sequence] = {}
        self._held: dict[Key, _Sequence] = {}
        self._reserved: set[Key] = set()
        self._steps = 0
        self._block_log = BlockLog()  # it caches nothing
        self._tokens_total = 0
        self._work = asyncio.Event()
        self._stopped = False
        self._hung_since_s: float | None = None
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._loop_task: asyncio.Task[None] | None = None
        self.fail_row: Callable[[Key], str | None] = lambda key: None
        self.blames_callers = False  # for rows that fail

    # What a test does to it.

    def start(self) -> None:
        """Begin stepping."""
        self._loop_task = asyncio.create_task(self._run())

    def hang(self, since_s: float = 0.0) -> None:
        """Stop answering, as an engine thread in a stuck kernel would; `since_s` seconds ago."""
        self._hung_since_s = time.monotonic() - since_s
        self._resumed.clear()

    def resume(self) -> None:
        """Undo `hang`."""
        self._hung_since_s = None
        self._resumed.set()

    # The port.

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def namespace(self) -> bytes:
        return namespace(
            model=self.script.model,
            weights=b"",
            tokenizer=b"",
            layout=self._layout.digest,
            grain=GRAIN,
            numerics="scripted",
        )

    @property
    def max_model_len(self) -> int:
        return self.script.max_model_len

    @property
    def keep_tokens(self) -> int:
        return 1

    @property
    def block_log(self) -> BlockLog:
        return self._block_log

    async def submit(self, generation: Generation, *, hold: bool) -> None:
        self._check(generation.capacity)
        await self._resumed.wait()
        self._waiting.append((generation, hold))
        self._work.set()

    async def reserve(self, key: Key, capacity: int) -> Pages | None:
        self._check(capacity)
        await self._resumed.wait()
        pages = self._pools.take(key, capacity)
        if pages is not None:
            self._reserved.add(key)
        return pages

    async def prepare(self, generation: Generation) -> None:
        """Nothing: it enforces nothing."""

    async def adopt(self, generation: Generation) -> None:
        await self._resumed.wait()
        if generation.key not in self._reserved:
            raise Broken(f"{generation.key} has no reservation")
        self._reserved.discard(generation.key)
        self._running[generation.key] = _Sequence(
            generation,
            self._pools.taken[generation.key],
            hold=False,
            tokens=list(generation.tokens),
            computed=len(generation.tokens) - 1,
            output=len(generation.forced),
        )
        self._work.set()

    async def held(self, key: Key) -> Pages | None:
        await self._resumed.wait()
        sequence = self._held.get(key)
        if sequence is None:
            return None
        pages = sequence.pages
        count = -(-sequence.computed // GRAIN)
        return Pages(pages.blocks[:count], pages.slot, sequence.computed)

    async def drop(self, key: Key) -> bool:
        await self._resumed.wait()
        waiting = len(self._waiting)
        self._waiting = deque(w for w in self._waiting if w[0].key != key)
        self._running.pop(key, None)
        self._held.pop(key, None)
        self._reserved.discard(key)
        return self._pools.free(key) or len(self._waiting) < waiting

    def block(self, page: int) -> memoryview:
        size = self._layout.block_bytes
        return memoryview(self._blocks)[page * size : (page + 1) * size]

    def slot(self, slot: int) -> memoryview:
        size = self._layout.slot_bytes
        return memoryview(self._slots)[slot * size : (slot + 1) * size]

    def counts(self) -> Counts:
        return Counts(
            running=len(self._running),
            waiting=len(self._waiting),
            held=len(self._held),
            reserved=len(self._reserved),
            free_blocks=len(self._pools.blocks),
            num_blocks=self.script.num_blocks,
            free_slots=len(self._pools.slots),
            num_slots=self.script.num_slots,
            tokens_total=self._tokens_total,
        )

    def idle_s(self) -> float:
        return 0.0 if self._hung_since_s is None else time.monotonic() - self._hung_since_s

    async def stop(self) -> None:
        self._stopped = True
        if self._loop_task is not None:
            self._loop_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop_task

    # Steps.

    def _check(self, capacity: int) -> None:
        if capacity > min(self.script.max_model_len, self.script.num_blocks * GRAIN):
            raise BadRequest(f"{capacity} positions never fit", code="context_length_exceeded")

    async def _run(self) -> None:
        while not self._stopped:
            if not self._running and not self._waiting:
                self._work.clear()
                await self._work.wait()
            await asyncio.sleep(self.script.step_s)
            await self._resumed.wait()
            self._admit()
            self._step()

    def _admit(self) -> None:
        while self._waiting:
            generation, hold = self._waiting[0]
            positions = len(generation.tokens) if hold else generation.capacity
            pages = self._pools.take(generation.key, positions)
            if pages is None:
                return
            self._waiting.popleft()
            self._running[generation.key] = _Sequence(
                generation, pages, hold, list(generation.tokens), output=len(generation.forced)
            )

    def _step(self) -> None:
        rows: list[Row] = []
        chunks: list[Chunk] = []
        starts: list[Chunk] = []
        for key, sequence in list(self._running.items()):
            left = len(sequence.tokens) - sequence.computed
            if left > self.script.chunk_tokens:
                self._write(sequence, sequence.computed + self.script.chunk_tokens)
                chunks.append(Chunk(key, sequence.computed, last_chunk_started=False))
                continue
            if left > 1 or sequence.computed == 0:
                starts.append(Chunk(key, sequence.computed, last_chunk_started=True))
            rows.append(self._sample(key, sequence))
        if starts:  # the engine tells it before the step computes
            self._on_step(StepOutput(self._steps, chunks=tuple(starts)))
        if rows or chunks:
            self._on_step(StepOutput(self._steps, tuple(rows), tuple(chunks)))
        self._steps += 1

    def _sample(self, key: Key, sequence: _Sequence) -> Row:
        why = self.fail_row(key)
        if why is None and not self._is_written(sequence):
            why = "the pages do not hold this text"
        if why is not None:
            self._end(key)
            is_theirs = self.blames_callers
            return Row(key, finish=Finish.ERROR, message=why, is_contradiction=is_theirs)
        self._write(sequence, len(sequence.tokens))
        token = self._next(sequence)
        sequence.tokens.append(token)
        sequence.output += 1
        self._tokens_total += 1
        finish = self._finish_of(sequence, token)
        stop = token if token in sequence.generation.sampling.stop_token_ids else None
        if finish is not None:
            self._end(key)
        elif sequence.hold:
            self._held[key] = self._running.pop(key)
        return Row(key, (token,), finish, stop_token=stop)

    def _next(self, sequence: _Sequence) -> int:
        return next_token(sequence.tokens, sequence.generation.sampling.seed, self.script)

    def _finish_of(self, sequence: _Sequence, token: int) -> Finish | None:
        sampling = sequence.generation.sampling
        if token in sampling.stop_token_ids or (token == EOS and not sampling.ignore_eos):
            return Finish.STOP
        return Finish.LENGTH if sequence.output >= sequence.generation.max_new else None

    def _end(self, key: Key) -> None:
        self._running.pop(key, None)
        self._pools.free(key)

    def _write(self, sequence: _Sequence, positions: int) -> None:
        """Fill the pages as if the positions had been computed."""
        for index in range(sequence.computed // GRAIN, -(-positions // GRAIN)):
            text = sequence.tokens[: min(positions, (index + 1) * GRAIN)]
            self.block(sequence.pages.blocks[index])[:] = _pattern(text, self._layout.block_bytes)
        slot = _pattern(sequence.tokens[:positions], self._layout.slot_bytes)
        self.slot(sequence.pages.slot)[:] = slot
        sequence.computed = positions

    def _is_written(self, sequence: _Sequence) -> bool:
        """Whether the pages hold exactly what the positions so far would have left there."""
        done = sequence.computed
        if not done:
            return True
        for index in range(-(-done // GRAIN)):
            text = sequence.tokens[: min(done, (index + 1) * GRAIN)]
            if self.block(sequence.pages.blocks[index]) != _pattern(text, self._layout.block_bytes):
                return False
        slot = _pattern(sequence.tokens[:done], self._layout.slot_bytes)
        return self.slot(sequence.pages.slot) == slot


def next_token(tokens: list[int], seed: int, script: Script) -> int:
    """The token that follows a text."""
    digest = hashlib.blake2b(pack_ids(tokens) + seed.to_bytes(8, "little"), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    if script.eos_every and number % script.eos_every == 0:
        return EOS
    return FIRST_TOKEN + number // 1024 % (script.vocab_size - FIRST_TOKEN)


def continuation(generation: Generation, script: Script | None = None) -> list[int]:
    """The output that the engine will give, forced tokens included."""
    script = script or Script()
    sampling = generation.sampling
    tokens = list(generation.tokens)
    output = list(generation.forced)
    while len(output) < generation.max_new:
        token = next_token(tokens, sampling.seed, script)
        tokens.append(token)
        output.append(token)
        if token in sampling.stop_token_ids or (token == EOS and not sampling.ignore_eos):
            break
    return output


def _pattern(tokens: list[int], size: int) -> bytes:
    return hashlib.shake_128(pack_ids(tokens)).digest(size)
