"""From settings to the tiers of a folder."""

import secrets

from diptych.config import StoreSettings, secrets_of
from diptych.core.ids import Incarnation
from diptych.kvcache_store.house import House
from diptych.kvcache_store.quota import Quotas
from diptych.kvcache_store.retention import Retention
from diptych.kvcache_store.tenants import Tenants
from diptych.kvcache_store.tiers import Tiers

PINNED_PART = 4  # of the disk, unless it is said


def build(settings: StoreSettings, house: House, *, least_disk_bytes: int = 0) -> Tiers:
    """The tiers of a house, not opened yet."""
    _, master_key = secrets_of(settings)
    disk_bytes = max(settings.cache_disk_bytes, least_disk_bytes)
    pinned = settings.cache_pinned_bytes
    limits = {
        Retention.AGENT: settings.cache_agent_bytes,
        Retention.CHAT: settings.cache_chat_bytes,
        Retention.PINNED: disk_bytes // PINNED_PART if pinned is None else pinned,
    }
    return Tiers(
        memory_bytes=settings.cache_memory_bytes,
        tenants=Tenants(house.tenants, master_key, encrypt=settings.cache_encrypt),
        incarnation=Incarnation(secrets.randbits(64) | 1),
        volume=house.volume() if disk_bytes else None,
        disk_bytes=disk_bytes,
        quotas=Quotas(
            tenant_bytes=settings.cache_tenant_bytes,
            class_bytes={kind: limit for kind, limit in limits.items() if limit is not None},
        ),
        fsync_s=settings.cache_fsync_s,
    )
