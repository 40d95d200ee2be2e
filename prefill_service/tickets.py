"""Leases on prompts that wait to be fetched. Knows times and ids; no sockets, no pages.

A ticket is *expected* from the moment its prompt is queued, *held* from its first token until it
is committed, given up, or its lease lapses.
"""

from dataclasses import dataclass, replace

from diptych.core.ids import Key

LEASE_S = 30.0  # from the first token
RENEWED_S = 20.0  # from a renewal


@dataclass(frozen=True, slots=True)
class Lease:
    """One ticket's right to wait."""

    ticket_id: bytes
    key: Key
    expires_s: float
    is_held: bool = False


class Tickets:
    """The ledger. Every method that depends on time is told what time it is."""

    def __init__(self) -> None:
        self._leases: dict[bytes, Lease] = {}
        self._by_key: dict[Key, bytes] = {}
        self.lapsed_total = 0

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def num_held(self) -> int:
        return sum(lease.is_held for lease in self._leases.values())

    @property
    def next_expiry_s(self) -> float | None:
        """When the next lease lapses if nothing else happens."""
        return min((lease.expires_s for lease in self._leases.values()), default=None)

    def expect(self, ticket_id: bytes, key: Key, now_s: float, deadline_s: float) -> None:
        """Open a lease for a prompt that has until `deadline_s` from now for its first token."""
        self._leases[ticket_id] = Lease(ticket_id, key, now_s + deadline_s)
        self._by_key[key] = ticket_id

    def hold(self, ticket_id: bytes, now_s: float) -> bool:
        """The first token is out and the KV waits; False if the lease is over already."""
        lease = self.find(ticket_id, now_s)
        if lease is None:
            return False
        self._leases[ticket_id] = replace(lease, expires_s=now_s + LEASE_S, is_held=True)
        return True

    def find(self, ticket_id: bytes, now_s: float) -> Lease | None:
        """The lease, if it still runs."""
        lease = self._leases.get(ticket_id)
        return lease if lease is not None and now_s < lease.expires_s else None

    def of(self, key: Key) -> Lease | None:
        """The lease of a request, whether it still runs or not."""
        ticket_id = self._by_key.get(key)
        return None if ticket_id is None else self._leases[ticket_id]

    def renew(self, ticket_id: bytes, now_s: float) -> float | None:
        """Seconds the lease has from now, never fewer than before; None if it is over."""
        lease = self.find(ticket_id, now_s)
        if lease is None:
            return None
        expires_s = max(lease.expires_s, now_s + RENEWED_S)
        self._leases[ticket_id] = replace(lease, expires_s=expires_s)
        return expires_s - now_s

    def take(self, ticket_id: bytes, now_s: float) -> Key | None:
        """Commit: end a lease that is held and runs. None means the fetched KV must not be used."""
        lease = self.find(ticket_id, now_s)
        if lease is None or not lease.is_held:
            return None
        self.drop(ticket_id)
        return lease.key

    def drop(self, ticket_id: bytes) -> Key | None:
        """End a lease in whatever state; None if there is none."""
        lease = self._leases.pop(ticket_id, None)
        if lease is None:
            return None
        del self._by_key[lease.key]
        return lease.key

    def lapse(self, now_s: float) -> list[Lease]:
        """Remove, count and name the leases that are over."""
        over = [lease for lease in self._leases.values() if lease.expires_s <= now_s]
        for lease in over:
            self.drop(lease.ticket_id)
        self.lapsed_total += len(over)
        return over
