"""Who asks: from the headers of a request to a principal, or a 401.

Open: while no key was ever made, and the port is on loopback or `--allow-anonymous` was said,
everybody is the anonymous caller. The first key closes that for good; under `--allow-anonymous`
who sends no key at all stays anonymous.
"""

import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum, auto

from diptych.core.errors import Misconfigured
from diptych.gateway.tenancy import refusals
from diptych.gateway.tenancy.credential import Credential, issue, parse
from diptych.gateway.tenancy.keys import (
    ANONYMOUS,
    ApiKey,
    KeyStore,
    Principal,
    Scope,
    Stored,
    principal,
    stored,
)
from diptych.gateway.tenancy.meters import Rate
from diptych.gateway.tenancy.peers import is_loopback, network_of
from diptych.gateway.tenancy.peppers import Peppers

log = logging.getLogger(__name__)

FAILURES_PER_MIN = 20
NOTES_PER_MIN = 60  # of all addresses together: strangers must not fill the audit log
SWEEP_AT = 4096
CANARY = Principal(
    "canary", "~platform", frozenset({Scope.INFERENCE}), is_accounted=False
)  # the platform asking itself whether it answers


class Why(StrEnum):
    """What was wrong. For operators: callers are told one thing, whatever it was."""

    MISSING = auto()
    SEVERAL = auto()  # different ones in one request
    MALFORMED = auto()  # not the form of a key, or a typing error
    WRONG = auto()  # no such key, or not its secret
    EXPIRED = auto()  # or revoked
    ADDRESS = auto()  # may not call from there
    TOO_OFTEN = auto()  # whatever it was, from an address that fails all the time


OnFailure = Callable[[str, str], None]  # address, key id or ""


def canary_token(cluster_secret: bytes) -> str:
    """What the supervisor sends to its own gateway; no key needs to be made for it."""
    return f"canary-{hmac.digest(cluster_secret, b'diptych canary v1', 'sha256').hex()}"


class Authentication:
    """Knows keys, and addresses from which wrong ones came."""

    def __init__(
        self,
        store: KeyStore,
        peppers: Peppers,
        *,
        is_open: bool,
        canary: str = "",
        allows_anonymous: bool = False,
        on_failure: OnFailure = lambda address, key_id: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._peppers = peppers
        self._canary = canary.encode()
        self._is_open = is_open or allows_anonymous
        self._allows_anonymous = allows_anonymous
        self._on_failure = on_failure
        self._now_s = now_s
        self._failures = Rate("failures", FAILURES_PER_MIN)
        self._full_at_us: dict[str, int] = {}
        self._notes = Rate("notes", NOTES_PER_MIN)
        self._notes_full_at_us = 0
        self._nobody = stored(issue(), peppers)
        self.failures = Counter(dict.fromkeys(Why, 0))

    async def identify(self, headers: Mapping[str, str], address: str) -> Principal:
        """Who sent these headers; 401, and 429 for an address that was wrong too often."""
        tokens = _tokens(headers)
        if self._canary and any(map(self._is_canary, tokens)):
            return CANARY
        if self._is_open and not await self._store.has_any():
            return ANONYMOUS
        if not tokens and self._allows_anonymous:
            return ANONYMOUS
        if len(tokens) != 1:
            raise self._failed(address, "", Why.SEVERAL if tokens else Why.MISSING)
        credential = parse(tokens[0])
        if credential is None:
            raise self._failed(address, "", Why.MALFORMED)
        key = await self._check(credential, address)
        if isinstance(key, Why):
            raise self._failed(address, credential.key_id, key)
        return principal(key, await self._store.tenant_limits(key.tenant))

    def _is_canary(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._canary)

    async def _check(self, credential: Credential, address: str) -> ApiKey | Why:
        """The key if all is well, or what is not. An unknown id costs what a known one does."""
        key = await self._store.find(credential.key_id)
        now_s = self._now_s()
        secrets = key.secrets if key else (self._nobody,)
        is_right = [self._matches(credential, secret, now_s) for secret in secrets]
        if key is None or not any(is_right):
            return Why.WRONG
        if not key.is_valid(now_s):
            return Why.EXPIRED
        return key if key.allows_address(address) else Why.ADDRESS

    def _matches(self, credential: Credential, secret: Stored, now_s: float) -> bool:
        pepper = self._peppers.find(secret.pepper)
        if pepper is None:
            log.warning(
                "key refused: pepper %s is not here key=%s", secret.pepper, credential.key_id
            )
            pepper = self._peppers.newest
        digest = credential.digest(pepper).hex()
        is_same = hmac.compare_digest(digest, secret.digest)
        return is_same and (secret.until_s is None or now_s < secret.until_s)

    def _failed(self, address: str, key_id: str, why: Why) -> Exception:
        now_us = int(self._now_s() * 1e6)
        network = network_of(address)
        full_at_us = self._full_at_us.get(network, 0)
        wait_us = self._failures.wait_us(full_at_us, now_us, 1)
        self.failures[Why.TOO_OFTEN if wait_us else why] += 1
        if wait_us:
            return refusals.bad_keys_too_often(wait_us / 1e6)
        if full_at_us <= now_us:  # the first for a while: one entry in the audit log tells it
            self._note(address, key_id, now_us)
        self._full_at_us[network] = max(full_at_us, now_us) + self._failures.cost_us(1)
        if len(self._full_at_us) > SWEEP_AT:
            self._full_at_us = {n: at for n, at in self._full_at_us.items() if at > now_us}
        return refusals.bad_key()

    def _note(self, address: str, key_id: str, now_us: int) -> None:
        if self._notes.wait_us(self._notes_full_at_us, now_us, 1) == 0:
            start_us = max(self._notes_full_at_us, now_us)
            self._notes_full_at_us = start_us + self._notes.cost_us(1)
            self._on_failure(address, key_id)


async def refuse_open_port(host: str, store: KeyStore, allows_anonymous: bool) -> None:
    """Misconfigured if everybody could use the gateway and nobody said so."""
    if is_loopback(host) or allows_anonymous or await store.has_any():
        return
    raise Misconfigured(
        f"--host {host} can be reached from other machines and there is no API key. Make one with "
        "`diptych keys create --name NAME`, or say --allow-anonymous to let everybody in"
    )


def _tokens(headers: Mapping[str, str]) -> list[str]:
    """All different credentials that were sent."""
    sent = []
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        sent.append(token.strip())
    elif scheme:
        sent.append("")  # something was sent, and it is no key
    if token := headers.get("x-api-key", "").strip():
        sent.append(token)
    return list(dict.fromkeys(sent))
