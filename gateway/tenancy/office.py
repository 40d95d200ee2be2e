"""Builds the parts of tenancy from settings: in the data folder, or in Redis."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diptych.gateway.tenancy.audit import Act, AuditLog
from diptych.gateway.tenancy.authentication import Authentication, OnFailure, canary_token
from diptych.gateway.tenancy.book import Book, MemoryBook
from diptych.gateway.tenancy.clerk import Clerk
from diptych.gateway.tenancy.desk import Desk
from diptych.gateway.tenancy.door import Door
from diptych.gateway.tenancy.keyfile import KeyFile
from diptych.gateway.tenancy.keys import KeyStore
from diptych.gateway.tenancy.peers import Peers, is_loopback
from diptych.gateway.tenancy.peppers import Peppers, load
from diptych.gateway.tenancy.usage import UsageStore
from diptych.gateway.tenancy.usagefile import UsageFile


@dataclass(frozen=True, slots=True)
class Plan:
    """What an office is made of."""

    data_dir: Path
    cluster_secret: bytes
    redis_url: str | None = None
    key_pepper: str | None = None
    host: str = "127.0.0.1"
    allow_anonymous: bool = False
    is_admin_local: bool = True
    trusted_proxies: tuple[str, ...] = ()
    usage_days: int = 400
    audit_days: int = 400
    num_gateways: Callable[[], int] = lambda: 1
    routes: tuple[tuple[str, str], ...] = ()  # pattern of paths, retention class


@dataclass(frozen=True, slots=True)
class Office:
    """All parts, ready; `clerk.run` must be running."""

    store: KeyStore
    book: Book
    usage: UsageStore
    audit: AuditLog
    desk: Desk
    clerk: Clerk
    authentication: Authentication  # of the public port
    admin_authentication: Authentication
    door: Door
    peers: Peers

    async def close(self) -> None:
        """Settle and write what is left, and leave the stores."""
        await self.clerk.finish()
        await self.book.close()
        await self.usage.close()
        await self.store.close()


async def open_store(redis_url: str | None, data_dir: Path) -> KeyStore:
    """Where keys are."""
    if redis_url is None:
        return KeyFile(data_dir)
    from diptych.gateway.tenancy.rediskeys import RedisKeys
    from diptych.gateway.tenancy.redisline import Line
    from diptych.transport.redis_client import connect

    return RedisKeys(Line(connect(redis_url)))


def open_desk(store: KeyStore, plan: Plan) -> Desk:
    """For who needs to manage keys only."""
    return Desk(store, _peppers(plan), AuditLog(plan.data_dir, plan.cluster_secret))


async def open_office(plan: Plan) -> Office:
    """Misconfigured if a file cannot be used."""
    store = await open_store(plan.redis_url, plan.data_dir)
    usage: UsageStore = UsageFile(plan.data_dir)
    book: Book = MemoryBook(usage.spent)
    if plan.redis_url is not None:
        from diptych.gateway.tenancy.redisbook import RedisBook
        from diptych.gateway.tenancy.rediskeys import RedisKeys
        from diptych.gateway.tenancy.redisline import Line
        from diptych.gateway.tenancy.redisusage import RedisUsage
        from diptych.transport.redis_client import connect

        assert isinstance(store, RedisKeys)
        store.start()
        usage = RedisUsage(Line(connect(plan.redis_url)), usage)
        book = RedisBook(Line(connect(plan.redis_url)), plan.num_gateways)
    audit = AuditLog(plan.data_dir, plan.cluster_secret)
    clerk = Clerk(book, usage, audit, usage_days=plan.usage_days, audit_days=plan.audit_days)
    peppers = _peppers(plan)

    def failed(action: str) -> OnFailure:
        return lambda address, key_id: clerk.note(Act(key_id, address, action, result="refused"))

    authentication = Authentication(
        store,
        peppers,
        canary=canary_token(plan.cluster_secret),
        is_open=is_loopback(plan.host),
        allows_anonymous=plan.allow_anonymous,
        on_failure=failed("auth.failed"),
    )
    admin = Authentication(
        store, peppers, is_open=plan.is_admin_local, on_failure=failed("admin.auth.failed")
    )
    peers = Peers(plan.trusted_proxies)
    user_key = hmac.digest(plan.cluster_secret, b"diptych user ids v1", "sha256")
    door = Door(authentication, book, clerk, peers, user_key, plan.routes)
    return Office(
        store=store,
        book=book,
        usage=usage,
        audit=audit,
        desk=Desk(store, peppers, audit),
        clerk=clerk,
        authentication=authentication,
        admin_authentication=admin,
        door=door,
        peers=peers,
    )


def _peppers(plan: Plan) -> Peppers:
    return load(plan.key_pepper, plan.data_dir)
