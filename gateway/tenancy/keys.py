"""What is known of a key: who owns it, what it may do, until when. Values only."""

import dataclasses
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self

from diptych.gateway.tenancy.credential import Credential
from diptych.gateway.tenancy.peppers import Peppers, fingerprint

DEFAULT_TENANT = "default"


class Scope(StrEnum):
    """What a key may do."""

    INFERENCE = "inference"
    DEBUG = "debug"
    USAGE_READ = "usage:read"
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"


IMPLIED = {
    Scope.ADMIN_WRITE: {Scope.ADMIN_WRITE, Scope.ADMIN_READ, Scope.USAGE_READ},
    Scope.ADMIN_READ: {Scope.ADMIN_READ, Scope.USAGE_READ},
}


@dataclass(frozen=True, slots=True)
class Limits:
    """None is unlimited."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None  # prompt and completion; cached prompt counts a tenth
    concurrency: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    tokens_per_day: int | None = None  # UTC; prompt and completion, cached or not
    tokens_per_month: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """Those that limit."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Stored:
    """A secret as it is kept."""

    pepper: str  # fingerprint
    digest: str  # hexadecimal
    last: str
    until_s: float | None = None  # replaced by a rotation: valid until then


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret. Times are seconds since 1970."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_s: float
    secrets: tuple[Stored, ...]  # newest first
    creator: str = ""
    models: tuple[str, ...] = ()  # () is all
    limits: Limits = NO_LIMITS
    priority_class: str = ""
    retention: str = "chat"  # of the KV of its prompts, one of core.request.RETENTIONS
    networks: tuple[str, ...] = ()  # () is everywhere
    expires_s: float | None = None
    revoked_s: float | None = None

    def is_valid(self, now_s: float) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_s is None and (self.expires_s is None or now_s < self.expires_s)

    @property
    def granted(self) -> frozenset[Scope]:
        """Scopes with those they imply."""
        return frozenset(s for scope in self.scopes for s in IMPLIED.get(scope, {scope}))

    def allows_address(self, address: str) -> bool:
        """Whether a client may call from there."""
        if not self.networks:
            return True
        try:
            there = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(there, ipaddress.IPv6Address) and there.ipv4_mapped:
            there = there.ipv4_mapped
        return any(there in ipaddress.ip_network(network) for network in self.networks)

    def rotated(self, credential: Credential, peppers: Peppers, until_s: float) -> Self:
        """With a new secret; the last one stays valid until then."""
        newest = dataclasses.replace(self.secrets[0], until_s=until_s)
        return dataclasses.replace(self, secrets=(stored(credential, peppers), newest))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        known = dict(fields)
        for name in ("models", "networks"):
            known[name] = tuple(known[name])
        known["scopes"] = tuple(Scope(scope) for scope in known["scopes"])
        known["secrets"] = tuple(Stored(**secret) for secret in known["secrets"])
        known["limits"] = Limits(**known["limits"])
        return cls(**known)


def stored(credential: Credential, peppers: Peppers) -> Stored:
    """What to keep of a credential."""
    pepper = peppers.newest
    return Stored(fingerprint(pepper), credential.digest(pepper).hex(), credential.last)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, once that is known."""

    key_id: str
    tenant: str
    scopes: frozenset[Scope]
    models: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    tenant_limits: Limits = NO_LIMITS
    priority_class: str = ""
    retention: str = "chat"
    is_accounted: bool = True


ANONYMOUS = Principal(
    "anonymous",
    DEFAULT_TENANT,
    frozenset({Scope.INFERENCE, Scope.DEBUG, Scope.USAGE_READ, Scope.ADMIN_READ}),
)


def principal(key: ApiKey, tenant_limits: Limits) -> Principal:
    """The owner of a key."""
    return Principal(
        key.id,
        key.tenant,
        key.granted,
        key.models,
        key.limits,
        tenant_limits,
        key.priority_class,
        key.retention,
    )


Change = Callable[[ApiKey], ApiKey]


class KeyStore(Protocol):
    """Where keys are kept. Raises Overloaded when it cannot be reached and does not know."""

    async def find(self, key_id: str) -> ApiKey | None:
        """A key, possibly as it was a moment ago."""

    async def has_any(self) -> bool:
        """Whether a key was ever made."""

    async def all(self) -> list[ApiKey]:
        """Every key, oldest first."""

    async def add(self, key: ApiKey) -> None:
        """Keep a new key."""

    async def update(self, key_id: str, change: Change) -> ApiKey | None:
        """Change a key, nobody else between reading and writing; None if it is not there."""

    async def tenant_limits(self, tenant: str) -> Limits:
        """Limits that all keys of a tenant share."""

    async def tenants(self) -> dict[str, Limits]:
        """All tenants that have limits."""

    async def set_tenant_limits(self, tenant: str, limits: Limits) -> None: ...

    async def close(self) -> None: ...
