"""Where keys are made, changed and withdrawn; the command line and the admin API both come here."""

import dataclasses
import ipaddress
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from diptych.core.errors import BadRequest, NotFound
from diptych.core.request import RETENTIONS
from diptych.gateway.tenancy.audit import Act, AuditLog
from diptych.gateway.tenancy.credential import issue
from diptych.gateway.tenancy.keys import (
    DEFAULT_TENANT,
    NO_LIMITS,
    ApiKey,
    KeyStore,
    Limits,
    Scope,
    stored,
)
from diptych.gateway.tenancy.peppers import Peppers

OVERLAP_S = 86_400.0
MAX_OVERLAP_S = 30 * 86_400.0
MAX_LIMIT = 100_000_000  # a minute's tokens; the arithmetic of meters.py is exact up to here
MAX_QUOTA = 10**15
LAST_S = 253_402_300_800  # the year 10000
MAX_MODELS = 64
MAX_NETWORKS = 64
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CLASS = re.compile(r"[a-z0-9_-]{0,32}")
_MODEL = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and from where."""

    id: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """A key as somebody wants it."""

    name: str
    tenant: str = DEFAULT_TENANT
    scopes: tuple[Scope, ...] = (Scope.INFERENCE,)
    models: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    priority_class: str = ""
    retention: str = "chat"
    networks: tuple[str, ...] = ()
    expires_s: float | None = None


CHANGEABLE = frozenset(field.name for field in dataclasses.fields(Wish)) - {"tenant"}


class Desk:
    """Every act here is in the audit log. A secret leaves once, when it is made."""

    def __init__(
        self,
        store: KeyStore,
        peppers: Peppers,
        audit: AuditLog,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._peppers = peppers
        self._audit = audit
        self._now_s = now_s

    async def create(self, by: Actor, wish: Wish) -> tuple[ApiKey, str]:
        """The key, and the text that its owner must keep."""
        credential, now_s = issue(), self._now_s()
        _check(wish, now_s)
        key = ApiKey(
            id=credential.key_id,
            created_s=now_s,
            creator=by.id,
            secrets=(stored(credential, self._peppers),),
            **{field.name: getattr(wish, field.name) for field in dataclasses.fields(wish)},
        )
        await self.store.add(key)
        await self._note(by, "key.create", key.id, None, key)
        return key, credential.text

    async def rotate(
        self, by: Actor, key_id: str, overlap_s: float = OVERLAP_S
    ) -> tuple[ApiKey, str]:
        """A new secret of the same key; the last one stays valid for the overlap."""
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise _wrong("overlap_s", f"expected 0 to {MAX_OVERLAP_S:g} seconds")
        credential = issue(key_id)
        until_s = self._now_s() + overlap_s
        before, key = await self._update(
            key_id, lambda key: _alive(key).rotated(credential, self._peppers, until_s)
        )
        await self._note(by, "key.rotate", key_id, before, key)
        return key, credential.text

    async def revoke(self, by: Actor, key_id: str) -> ApiKey:
        """Refuse it from now on. Its record stays; twice is once."""
        now_s = self._now_s()
        before, key = await self._update(
            key_id, lambda key: dataclasses.replace(key, revoked_s=key.revoked_s or now_s)
        )
        await self._note(by, "key.revoke", key_id, before, key)
        return key

    async def change(self, by: Actor, key_id: str, fields: Mapping[str, Any]) -> ApiKey:
        """Replace some of what was wished for; the tenant and the secret stay."""
        assert fields.keys() <= CHANGEABLE
        now_s = self._now_s()

        def change(key: ApiKey) -> ApiKey:
            changed = dataclasses.replace(_alive(key), **fields)
            names = (field.name for field in dataclasses.fields(Wish))
            _check(Wish(**{name: getattr(changed, name) for name in names}), now_s)
            return changed

        before, key = await self._update(key_id, change)
        await self._note(by, "key.change", key_id, before, key)
        return key

    async def find(self, key_id: str) -> ApiKey:
        """NotFound if there is no such key."""
        key = await self.store.find(key_id)
        if key is None:
            raise _no_key()
        return key

    async def set_tenant_limits(self, by: Actor, tenant: str, limits: Limits) -> None:
        """Limits that all keys of a tenant share."""
        _check_tenant(tenant)
        _check_limits(limits)
        before = await self.store.tenant_limits(tenant)
        await self.store.set_tenant_limits(tenant, limits)
        await self._audit.add(
            Act(by.id, by.origin, "tenant.change", tenant, before=before.given, after=limits.given)
        )

    async def _update(
        self, key_id: str, change: Callable[[ApiKey], ApiKey]
    ) -> tuple[ApiKey, ApiKey]:
        seen: list[ApiKey] = []

        def watched(key: ApiKey) -> ApiKey:
            seen.append(key)
            return change(key)

        changed = await self.store.update(key_id, watched)
        if changed is None:
            raise _no_key()
        return seen[-1], changed

    async def _note(
        self, by: Actor, action: str, key_id: str, before: ApiKey | None, after: ApiKey
    ) -> None:
        now_s = self._now_s()
        was = None if before is None else public(before, now_s)
        await self._audit.add(
            Act(by.id, by.origin, action, key_id, before=was, after=public(after, now_s))
        )


def public(key: ApiKey, now_s: float, last_used_s: float | None = None) -> dict[str, Any]:
    """A key as it may be shown."""
    older = [s for s in key.secrets[1:] if s.until_s is not None and now_s < s.until_s]
    state = (
        "revoked" if key.revoked_s is not None else "active" if key.is_valid(now_s) else "expired"
    )
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "state": state,
        "scopes": [scope.value for scope in key.scopes],
        "models": list(key.models),
        "limits": dataclasses.asdict(key.limits),
        "class": key.priority_class,
        "retention": key.retention,
        "networks": list(key.networks),
        "last_chars": key.secrets[0].last,
        "created_at": stamp(key.created_s),
        "expires_at": stamp(key.expires_s),
        "revoked_at": stamp(key.revoked_s),
        "last_used_at": stamp(last_used_s),
        "old_secret_until": stamp(older[0].until_s) if older else None,
        "creator": key.creator,
    }


def stamp(time_s: float | None) -> str | None:
    """RFC 3339, to the second."""
    if time_s is None:
        return None
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check(wish: Wish, now_s: float) -> None:
    if not (1 <= len(wish.name) <= 64 and wish.name.isprintable()):
        raise _wrong("name", "expected 1 to 64 printable characters")
    _check_tenant(wish.tenant)
    if not wish.scopes:
        raise _wrong("scopes", f"expected one or more of {', '.join(Scope)}")
    if len(wish.models) > MAX_MODELS or not all(map(_MODEL.fullmatch, wish.models)):
        raise _wrong("models", f"expected at most {MAX_MODELS} model names")
    _check_limits(wish.limits)
    if not _CLASS.fullmatch(wish.priority_class):
        raise _wrong("class", "expected at most 32 of a-z, 0-9, _ and -")
    if wish.retention not in RETENTIONS:
        raise _wrong("retention", f"expected one of {', '.join(RETENTIONS)}")
    if len(wish.networks) > MAX_NETWORKS or not all(map(_is_network, wish.networks)):
        raise _wrong("networks", f"expected at most {MAX_NETWORKS} networks such as 10.0.0.0/8")
    if wish.expires_s is not None and not now_s < wish.expires_s < LAST_S:
        raise _wrong("expires_at", "expected a time in the future")


def _check_tenant(tenant: str) -> None:
    if not _TENANT.fullmatch(tenant):
        raise _wrong("tenant", "expected 1 to 64 letters, digits, dots, dashes or underscores")


def _check_limits(limits: Limits) -> None:
    for name, value in dataclasses.asdict(limits).items():
        most = MAX_QUOTA if name.endswith(("day", "month")) else MAX_LIMIT
        if value is not None and not 1 <= value <= most:
            raise _wrong(f"limits.{name}", f"expected 1 to {most}, or none for no limit")


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _alive(key: ApiKey) -> ApiKey:
    if key.revoked_s is not None:
        raise BadRequest("this key was revoked; make a new one", code="key_revoked")
    return key


def _no_key() -> NotFound:
    return NotFound("There is no such key.", code="key_not_found")


def _wrong(param: str, expected: str) -> BadRequest:
    return BadRequest(f"{param}: {expected}", param=param)
