"""What operators see of a platform at one moment, as JSON: from what the router and stores say."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from diptych.gateway.admin.site import Site
from diptych.gateway.decisions import Decision
from diptych.kvcache_store.client import Stats
from diptych.router.client import Fleet, Member


def status(site: Site, fleet: Fleet | None) -> dict[str, Any]:
    """Pools, queue, and this gateway."""
    pools: dict[str, dict[str, int]] = {}
    for each in fleet.members if fleet else ():
        pool = pools.setdefault(each.join.role.value, {"members": 0, "ready": 0, "leases": 0})
        pool["members"] += 1
        pool["ready"] += each.ready
        pool["leases"] += each.leases
    is_held, visits = site.office.door.is_held, site.office.clerk.visits
    return {
        "ready": bool(fleet and fleet.ready and site.is_connected() and not is_held),
        "reasons": list(fleet.reasons) if fleet else ["the router was not heard"],
        "model": fleet.model if fleet else "",
        "model_version": site.version(),
        "queued": fleet.queued if fleet else 0,
        "leases": fleet.leases if fleet else 0,
        "pools": pools,
        "gateway": {"draining": is_held, "requests": len(visits)},
    }


def platform(
    site: Site, fleet: Fleet | None, stores: Sequence[dict[str, Any]], *, is_live: bool
) -> dict[str, Any]:
    """All of it. `is_live`: a router was heard just now."""
    return {
        **status(site, fleet),
        "time": time.time(),
        "gateway_id": site.gateway_id,
        "router": {"address": ", ".join(site.routers()), "live": is_live},
        "routers": [asdict(each) for each in fleet.routers] if fleet else [],
        "max_model_len": fleet.max_model_len if fleet else 0,
        "block_tokens": fleet.block_tokens if fleet else 0,
        "members": [member(each) for each in fleet.members] if fleet else [],
        "stores": list(stores),
        "decisions": [decision(each) for each in site.decisions()],
        "can_scale": bool(site.supervisor),
        "policy": fleet.policy if fleet else "",
        "desired": dict(fleet.desired) if fleet else {},
    }


def member(each: Member) -> dict[str, Any]:
    """One process that reports to the router."""
    join = each.join
    return {
        "id": join.member_id,
        "role": join.role.value,
        "state": each.state.value,
        "why": each.not_ready_reason,
        "address": join.address or join.http_address,
        "metrics_address": join.metrics_address,
        "incarnation": f"{join.incarnation:016x}" if join.incarnation else "",
        "namespace": join.namespace.hex(),
        "layout_hash": join.layout_hash.hex(),
        "pid": join.pid,
        "model": join.model,
        "num_blocks": join.num_blocks,
        "num_slots": join.num_slots,
        "leases": each.leases,
        "idle": each.is_idle,
        "load": asdict(each.load),
        "silent_s": round(each.silent_s, 3),
    }


def decision(each: Decision) -> dict[str, Any]:
    """Whom the router chose, and why."""
    return {
        "time": each.time_s,
        "request_id": each.request_id,
        "phase": each.phase,
        "worker": each.worker,
        "reasons": list(each.reasons),
    }


def store(address: str, stats: Stats) -> dict[str, Any]:
    """A node of the KV cache."""
    classes: Counter[str] = Counter()
    for account in stats.accounts:
        classes[account.retention] += account.size_bytes
    disk = stats.disk
    return {
        "id": stats.node,
        "address": address,
        "error": "",
        "classes": dict(classes),
        "disk": asdict(disk) | {"free": disk.free} if disk else None,
        "disk_parts": stats.disk_parts,
        "memory_bytes": stats.memory_bytes,
        "memory_capacity": stats.memory_capacity,
        "memory_parts": stats.memory_parts,
        "queued_bytes": stats.queued_bytes,
        "counters": stats.counters,
        "pins": len(stats.pins),
    }


def lost_store(address: str, why: str) -> dict[str, Any]:
    """A node that does not answer."""
    return {"id": "", "address": address, "error": why}
