"""A ticket: the signed right to fetch one prompt's KV from the worker that computed it.

It is a bearer right to read somebody's prompt state, hence the signature (HMAC-SHA256 with the
cluster secret) over every field. The lease itself lives at the prefill worker, on its own
monotonic clock; the ticket does not say when it ends.
"""

import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass

from diptych.core.blocks import part_hash
from diptych.core.errors import Refused
from diptych.core.ids import BlockHash, Incarnation, Key, WorkerId

SIGNATURE_BYTES = 32
TICKET_ID_BYTES = 16
TAIL = "tail"
SLOT = "slot"


@dataclass(frozen=True, slots=True)
class Ticket:
    """Where a prompt's KV waits, and what exactly waits there."""

    ticket_id: bytes
    key: Key
    scope: bytes
    worker_id: WorkerId
    address: str
    incarnation: Incarnation
    namespace: bytes  # model, weights, tokenizer, layout and numerics in one (core/blocks.py)
    hashes: tuple[BlockHash, ...]  # full blocks, in order
    num_tokens: int  # positions written: prompt + forced
    mode: str = "full_state"

    @property
    def tail_hash(self) -> BlockHash:
        return part_hash(self.ticket_id, TAIL)

    @property
    def slot_hash(self) -> BlockHash:
        return part_hash(self.ticket_id, SLOT)


def new_ticket_id() -> bytes:
    return secrets.token_bytes(TICKET_ID_BYTES)


def seal(ticket: Ticket, secret: bytes) -> bytes:
    """Signature, then canonical JSON with bytes as hex."""
    body = json.dumps(_plain(ticket), sort_keys=True, separators=(",", ":")).encode()
    return hmac.digest(secret, body, hashlib.sha256) + body


def unseal(sealed: bytes, secret: bytes) -> Ticket:
    """Check the signature and read the ticket; Refused if either fails."""
    signature, body = sealed[:SIGNATURE_BYTES], sealed[SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, hmac.digest(secret, body, hashlib.sha256)):
        raise Refused("the ticket's signature does not match this cluster's secret")
    try:
        fields = json.loads(body)
        return Ticket(
            ticket_id=bytes.fromhex(fields["ticket_id"]),
            key=Key(**fields["key"]),
            scope=bytes.fromhex(fields["scope"]),
            worker_id=WorkerId(fields["worker_id"]),
            address=fields["address"],
            incarnation=Incarnation(fields["incarnation"]),
            namespace=bytes.fromhex(fields["namespace"]),
            hashes=tuple(BlockHash(bytes.fromhex(h)) for h in fields["hashes"]),
            num_tokens=fields["num_tokens"],
            mode=fields["mode"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"the ticket is signed but not readable: {error}") from error


def _plain(ticket: Ticket) -> dict[str, object]:
    fields = asdict(ticket)
    for name in ("ticket_id", "scope", "namespace"):
        fields[name] = fields[name].hex()
    fields["hashes"] = [h.hex() for h in ticket.hashes]
    return fields
