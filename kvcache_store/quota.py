"""Shares of the disk: who is above theirs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diptych.kvcache_store.ledger import Ledger
from diptych.kvcache_store.retention import Retention


@dataclass(frozen=True, slots=True)
class Quotas:
    """Bytes; None and absent are without limit.

    Tenants and the classes agent and chat may exceed theirs while there is room, and lose the
    excess first. Pinned bytes are never evicted, so theirs is a wall.
    """

    tenant_bytes: int | None = None
    class_bytes: Mapping[Retention, int] = field(default_factory=dict)

    def is_over(self, ledger: Ledger, group: bytes, retention: Retention) -> bool:
        limit = self.class_bytes.get(retention)
        if limit is not None and ledger.of_class(retention) > limit:
            return True
        return self.tenant_bytes is not None and ledger.of_group(group) > self.tenant_bytes

    def granted(self, ledger: Ledger, wanted: Retention, size_bytes: int) -> Retention:
        """The class that so many more bytes get: chat where pinned is full."""
        if wanted is not Retention.PINNED:
            return wanted
        limit = self.class_bytes.get(wanted)
        fits = limit is None or ledger.of_class(wanted) + size_bytes <= limit
        return wanted if fits else Retention.CHAT
