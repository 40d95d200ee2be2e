"""Who holds which block, by what the workers say: a hint, never waited for. Knows no clock.

A holder announces the blocks that its cache takes in and gives up, numbered from the start of its
life. A gap in the numbers makes us ask for what is missing; the holder sends the missing ones again
or, if it has forgotten them, all of its blocks and the number it is at. Between a placement and
its announcement the blocks are *predicted*: they count half, for a few seconds.

One entry a block: 64 bits of its hash, and a bit for each holder. Blocks that were neither
announced nor used for longest go first when there are too many.

The nodes of the cache tier are one holder, for all to fetch from: segments of a chain lie on
different nodes. Their memory is known exactly, their disks, which hold far more, by fingerprints.
"""

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from diptych.core.ids import BlockHash, Incarnation
from diptych.router.fingerprints import SLOTS, Fingerprints
from diptych.router.messages import ANY_LIFE, BlockChanges, BlockTier

MAX_BLOCKS = 1_000_000  # about 110 bytes each
PREDICTED_S = 5.0
PREDICTED_WORTH = 0.5
PATIENCE = 16  # messages that were under way when we asked for missing ones

_ANNOUNCED = (BlockTier.DEVICE, BlockTier.HOST)


@dataclass(slots=True)
class Holder:
    """One member whose blocks are known."""

    bit: int
    incarnation: Incarnation
    next_seq: int = 0
    is_behind: bool = True  # until its first snapshot, and after a gap
    ignored: int | None = None  # messages since we asked for what is missing; None: not asked
    num_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Missing:
    """What a holder should send again: everything from this number on."""

    incarnation: Incarnation
    next_seq: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many first blocks of a chain each member holds; the predicted ones count half."""

    device: dict[str, float] = field(default_factory=dict)
    shared: int = 0  # that are somewhere outside a device, for all to fetch
    on_disk: int = 0  # of those


NOTHING = Overlap()


class PrefixIndex:
    """The blocks of all members, in bounded memory."""

    def __init__(self, max_blocks: int = MAX_BLOCKS, disk_slots: int = SLOTS) -> None:
        self.max_blocks = max_blocks
        self._disk_slots = disk_slots  # of each node
        self.gaps_total = 0
        self.evicted_total = 0
        self._holders: dict[tuple[str, BlockTier], Holder] = {}
        self._free_bits: list[int] = []
        self._mask_of: dict[int, int] = {}  # block → its holders; used last is last
        self._masks: dict[int, int] = {}  # each value once
        self._device_bits = self._host_bits = 0
        self._disks: dict[str, Fingerprints] = {}  # by node of the cache tier
        self._predicted: dict[int, dict[int, float]] = {}  # block → holder's bit → until
        self._expiring: deque[tuple[float, int, tuple[int, ...]]] = deque()

    def __len__(self) -> int:
        return len(self._mask_of)

    def holders(self) -> list[str]:
        """Members that announce what their devices hold."""
        return sorted(member for member, tier in self._holders if tier is BlockTier.DEVICE)

    def num_blocks(self, member: str) -> int:
        """How many blocks of a member are known."""
        return sum(h.num_blocks for (name, _), h in self._holders.items() if name == member)

    def num_in(self, tier: BlockTier) -> int:
        """How many blocks of a tier are known; those of several holders count at each."""
        if tier is BlockTier.DISK:
            return sum(map(len, self._disks.values()))
        return sum(h.num_blocks for (_, its), h in self._holders.items() if its is tier)

    # What members say

    def announce(
        self, member: str, incarnation: Incarnation, blocks: BlockChanges
    ) -> Missing | None:
        """Take in what a member announced; what it must send first, if something is missing.

        Numbers that were seen are passed over, so a batch that comes twice changes nothing.
        """
        if blocks.tier not in _ANNOUNCED:
            return None
        holder = self._holder(member, blocks.tier, incarnation)
        if blocks.is_snapshot:
            self._take_snapshot(holder, blocks)
            return None
        end = blocks.first_seq + len(blocks.hashes)
        if end <= holder.next_seq and not holder.is_behind:
            return None
        if blocks.first_seq > holder.next_seq:
            return self._ask(holder)
        holder.is_behind, holder.ignored = False, None
        seen = holder.next_seq - blocks.first_seq
        for key, is_stored in zip(keys_of(blocks.hashes), blocks.stored, strict=True):
            if seen > 0:
                seen -= 1
            elif is_stored:
                self._add(holder, key)
            else:
                self._drop(holder, key)
        holder.next_seq = max(holder.next_seq, end)
        self._trim()
        return None

    def stocked(
        self, node: str, tier: BlockTier, names: Sequence[BlockHash], *, came: bool
    ) -> None:
        """A node of the cache tier took blocks in, or gave them up; in order, and all of it."""
        if tier is BlockTier.DISK:
            disk = self._disks.get(node)
            if disk is None:
                disk = self._disks[node] = Fingerprints(self._disk_slots)
            for key in keys_of(names):
                if came:
                    self.evicted_total += disk.add(key)
                else:
                    disk.discard(key)
            return
        holder = self._holder(node, tier, ANY_LIFE)
        for key in keys_of(names):
            if came:
                self._add(holder, key)
            else:
                self._drop(holder, key)
        self._trim()

    def forget(self, member: str) -> None:
        """The member, or node of the cache tier, is gone with all it held."""
        self._disks.pop(member, None)
        for name, tier in [key for key in self._holders if key[0] == member]:
            holder = self._holders.pop((name, tier))
            self._clear(holder)
            self._device_bits &= ~holder.bit
            self._host_bits &= ~holder.bit
            self._free_bits.append(holder.bit)

    # What the router does

    def predict(self, member: str, keys: Sequence[int], now_s: float) -> None:
        """A prompt with these blocks was given to a member, which will hold them soon."""
        holder = self._holders.get((member, BlockTier.DEVICE))
        if holder is None:
            return
        self._expire(now_s)
        until_s, bit = now_s + PREDICTED_S, holder.bit
        fresh = []
        is_tight = 2 * len(self._mask_of) >= self.max_blocks  # or the order does not matter yet
        for key in keys:
            mask = self._mask_of.get(key, 0)
            if mask and is_tight:
                del self._mask_of[key]
                self._mask_of[key] = mask  # used last
            if not mask & bit:
                self._predicted.setdefault(key, {})[bit] = until_s
                fresh.append(key)
        self._expiring.append((until_s, bit, tuple(fresh)))

    def lookup(self, keys: Sequence[int], now_s: float) -> Overlap:
        """How much of a chain each member holds, and the cache tier, from its first block on."""
        if not self._holders and not self._disks:
            return NOTHING
        self._expire(now_s)
        alive = maybe = self._device_bits
        shared = on_disk = 0
        host_bits, disks = self._host_bits, list(self._disks.values())
        exact: dict[int, int] = {}  # holder's bit → how many blocks it holds
        likely: dict[int, int] = {}  # the same with what is predicted
        mask_of, predicted = self._mask_of, self._predicted
        for depth, key in enumerate(keys):
            mask = wide = mask_of.get(key, 0)
            for bit in predicted.get(key, ()):
                wide |= bit
            if alive & ~mask:
                _lose(exact, alive & ~mask, depth)
                alive &= mask
            if maybe & ~wide:
                _lose(likely, maybe & ~wide, depth)
                maybe &= wide
            if shared == depth:
                if mask & host_bits:
                    shared += 1
                elif any(key in disk for disk in disks):
                    shared += 1
                    on_disk += 1
            if not maybe and shared <= depth:
                break
        _lose(exact, alive, len(keys))
        _lose(likely, maybe, len(keys))
        return Overlap(self._held(exact, likely), shared, on_disk)

    # How

    def _take_snapshot(self, holder: Holder, blocks: BlockChanges) -> None:
        if not holder.is_behind and blocks.first_seq < holder.next_seq:
            return  # it was overtaken
        if blocks.is_first:
            self._clear(holder)
            holder.is_behind = True
        for key in keys_of(blocks.hashes):
            self._add(holder, key)
        self._trim()
        if blocks.is_last:
            holder.next_seq = blocks.first_seq  # what it was at: the real cursor
            holder.is_behind, holder.ignored = False, None

    def _ask(self, holder: Holder) -> Missing | None:
        """Something is missing: ask once, and again only if the answer does not come."""
        if holder.ignored is not None and holder.ignored < PATIENCE:
            holder.ignored += 1
            return None
        self.gaps_total += holder.ignored is None
        holder.is_behind, holder.ignored = True, 0
        return Missing(holder.incarnation, holder.next_seq)

    def _held(self, exact: dict[int, int], likely: dict[int, int]) -> dict[str, float]:
        device: dict[str, float] = {}
        for (member, tier), holder in self._holders.items():
            if tier is BlockTier.DEVICE and (hoped := likely[holder.bit]):
                sure = exact[holder.bit]
                device[member] = sure + PREDICTED_WORTH * (hoped - sure)
        return device

    def _holder(self, member: str, tier: BlockTier, incarnation: Incarnation) -> Holder:
        holder = self._holders.get((member, tier))
        if holder is None:
            bit = self._free_bits.pop() if self._free_bits else 1 << len(self._holders)
            holder = self._holders[member, tier] = Holder(bit, incarnation)
            if tier is BlockTier.DEVICE:
                self._device_bits |= bit
            else:
                self._host_bits |= bit
        elif holder.incarnation != incarnation:  # another life: nothing of the former is left
            self._clear(holder)
            fresh = Holder(holder.bit, incarnation)
            holder = self._holders[member, tier] = fresh
        return holder

    def _add(self, holder: Holder, key: int) -> None:
        mask = self._mask_of.pop(key, 0)
        holder.num_blocks += not mask & holder.bit
        mask |= holder.bit
        self._mask_of[key] = self._masks.setdefault(mask, mask)

    def _drop(self, holder: Holder, key: int) -> None:
        mask = self._mask_of.get(key, 0)
        if not mask & holder.bit:
            return
        holder.num_blocks -= 1
        mask &= ~holder.bit
        if mask:
            self._mask_of[key] = self._masks.setdefault(mask, mask)
        else:
            del self._mask_of[key]

    def _clear(self, holder: Holder) -> None:
        for key in [key for key, mask in self._mask_of.items() if mask & holder.bit]:
            self._drop(holder, key)
        for key, until in list(self._predicted.items()):
            until.pop(holder.bit, None)
            if not until:
                del self._predicted[key]

    def _trim(self) -> None:
        while len(self._mask_of) > self.max_blocks:
            key = next(iter(self._mask_of))
            mask = self._mask_of.pop(key)
            self.evicted_total += 1
            for holder in self._holders.values():
                holder.num_blocks -= bool(mask & holder.bit)
        if len(self._masks) > 1 << 16:
            self._masks.clear()

    def _expire(self, now_s: float) -> None:
        expiring, predicted = self._expiring, self._predicted
        while expiring and (expiring[0][0] <= now_s or len(predicted) > self.max_blocks):
            until_s, bit, keys = expiring.popleft()
            for key in keys:
                until = predicted.get(key)
                if until is not None and until.get(bit) == until_s:  # not predicted again since
                    del until[bit]
                    if not until:
                        del predicted[key]


def keys_of(hashes: Sequence[BlockHash]) -> tuple[int, ...]:
    """The first 64 bits of each hash."""
    return struct.unpack(f"<{2 * len(hashes)}Q", b"".join(hashes))[::2]


def _lose(depth_of: dict[int, int], bits: int, depth: int) -> None:
    """Each of these holders holds so many blocks and no more."""
    while bits:
        lowest = bits & -bits
        depth_of[lowest] = depth
        bits ^= lowest
