"""Who is there, by Redis: routers and stores announce themselves, whoever needs them watches.

Optional, and never waited for. A record lapses by the clock of Redis alone, so the clocks of hosts
do not matter. While Redis is away everybody goes on with who was there last, for as long as it
takes; when it is back nobody is dropped before a whole lease has passed, in which all who live have
announced themselves again.
"""

import asyncio
import hashlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, cast

from pydantic import SecretStr

from diptych.core.ids import Incarnation
from diptych.core.phases import Role
from diptych.transport.redis_client import ANSWER_S, connect

LEASE_S = 10.0
RENEW_S = 2.0

# KEYS: a hash a role, address → "lapses at, in ms;record". ARGV: a lease in ms, then for each key
# an address and a record, or two empty words. Answers the records of each key that are in force.
_MEET = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lease, found = tonumber(ARGV[1]), {}
for i, key in ipairs(KEYS) do
  local address, record = ARGV[2 * i], ARGV[2 * i + 1]
  if address ~= '' then
    redis.call('HSET', key, address, string.format('%.0f;%s', now + lease, record))
  end
  local all, kept = redis.call('HGETALL', key), {}
  for j = 1, #all, 2 do
    local left = tonumber(string.match(all[j + 1], '^%d+')) - now
    if left > 0 and left <= lease then
      kept[#kept + 1] = string.match(all[j + 1], ';(.*)$')
    elseif left < -100 * lease or left > lease then
      redis.call('HDEL', key, all[j])
    end
  end
  found[i] = kept
end
return found
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Announced:
    """One process that can be reached."""

    role: Role
    id: str
    address: str
    incarnation: Incarnation
    host: str = field(default_factory=socket.gethostname)

    def is_reachable_from(self, host: str) -> bool:
        """A loopback address means something on its own host only."""
        name = self.address.rpartition(":")[0].strip("[]")
        is_loopback = name in ("localhost", "::1") or name.startswith("127.")
        return not is_loopback or self.host == host


def addresses_in(members: Iterable[Announced], given: Iterable[str] = ()) -> list[str]:
    """Where they are, after those that were given by hand."""
    return list(dict.fromkeys((*given, *(member.address for member in members))))


OnChange = Callable[[tuple[Announced, ...]], None]


class Roster:
    """Who is there of one role, as a watcher has it. Pure: time is an argument.

    `lease_s` after Redis has come back, and `patience_s` after a member was seen last, it is gone.
    """

    def __init__(self, lease_s: float = LEASE_S, patience_s: float = 2 * RENEW_S) -> None:
        self._lease_s = lease_s
        self._patience_s = patience_s
        self._members: dict[str, Announced] = {}
        self._seen_s: dict[str, float] = {}
        self._back_s: float | None = None  # since when Redis answers; None: it does not

    @property
    def members(self) -> tuple[Announced, ...]:
        return tuple(self._members[address] for address in sorted(self._members))

    def lost(self) -> None:
        """Redis does not answer: whoever was there is taken to be there."""
        self._back_s = None

    def saw(self, found: Mapping[str, Announced], now_s: float) -> bool:
        """Redis named these; True if that changes who is there."""
        before = self.members
        if self._back_s is None:
            self._back_s = now_s
        for address, member in found.items():
            self._members[address] = member
            self._seen_s[address] = now_s
        for address, seen_s in list(self._seen_s.items()):
            if now_s >= max(self._back_s + self._lease_s, seen_s + self._patience_s):
                del self._members[address], self._seen_s[address]
        return self.members != before


class Membership:
    """Announces this process and watches others, for as long as `run` does.

    Only processes with one cluster secret meet: no others could work together.
    """

    def __init__(
        self,
        url: str,
        cluster_secret: bytes,
        *,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        host: str | None = None,
    ) -> None:
        from redis.exceptions import RedisError  # here: it brings a tracing SDK along

        self.is_away = False
        self._errors = (RedisError, OSError, TimeoutError)
        self._client = connect(url)
        self._scope = hashlib.blake2b(
            b"members", key=cluster_secret[:64], digest_size=8
        ).hexdigest()
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._host = host or socket.gethostname()
        self._me: Announced | None = None
        self._rosters: dict[Role, Roster] = {}
        self._watchers: dict[Role, OnChange] = {}

    def announce(self, me: Announced) -> None:
        """Be there from the next round on."""
        self._me = me

    def watch(self, role: Role, on_change: OnChange) -> None:
        """Call with all that are there whenever that changes; this process may be among them."""
        self._rosters[role] = Roster(self._lease_s, 2 * self._renew_s)
        self._watchers[role] = on_change

    def members(self, role: Role) -> tuple[Announced, ...]:
        """Of a role that is watched."""
        return self._rosters[role].members

    @classmethod
    def of(cls, url: SecretStr | None, cluster_secret: bytes) -> Self | None:
        """None where no Redis is configured."""
        return None if url is None else cls(url.get_secret_value(), cluster_secret)

    async def run(self) -> None:
        """Announce and look, until cancelled; then say goodbye."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                began_s = loop.time()
                await self._meet()
                await asyncio.sleep(max(0.0, began_s + self._renew_s - loop.time()))
        finally:
            await self._leave()

    async def _meet(self) -> None:
        roles = [*self._rosters]
        if self._me is not None and self._me.role not in self._rosters:
            roles.append(self._me.role)
        if not roles:
            return
        words: list[str] = [str(round(self._lease_s * 1000))]
        for role in roles:
            words += _words(self._me) if self._me and self._me.role is role else ("", "")
        try:
            answers = await self._call(
                self._client.eval(_MEET, len(roles), *map(self._key, roles), *words)
            )
        except self._errors as error:
            self._lost(error)
            return
        if self.is_away:
            log.info("redis is back")
            self.is_away = False
        now_s = asyncio.get_running_loop().time()
        for role, records in zip(roles, answers, strict=True):
            if role in self._rosters and self._rosters[role].saw(self._read(role, records), now_s):
                members = self._rosters[role].members
                log.info("%ss are now %s", role, ", ".join(m.address for m in members) or "none")
                self._watchers[role](members)

    def _lost(self, error: Exception) -> None:
        for roster in self._rosters.values():
            roster.lost()
        if not self.is_away:  # once an outage; its text may hold the URL
            log.warning("redis is away, going on as before: %s", type(error).__name__)
            self.is_away = True

    async def _leave(self) -> None:
        """Nobody waits for it: a lease that is not given back lapses."""
        try:
            if self._me is not None and not self.is_away:
                key, address = self._key(self._me.role), self._me.address
                await self._call(self._client.hdel(key, address))
        except self._errors:
            log.info("redis is away, the lease will lapse")
        finally:
            await self._client.aclose()

    async def _call(self, asked: Any) -> Any:
        async with asyncio.timeout(ANSWER_S):
            return await cast(Awaitable[Any], asked)

    def _key(self, role: Role) -> str:
        return f"diptych:members:{{{self._scope}}}:{role}"  # in one slot of a cluster

    def _read(self, role: Role, records: list[str]) -> dict[str, Announced]:
        found = {}
        for record in records:
            try:
                member = _from_record(role, record)
            except (ValueError, TypeError, KeyError):
                log.warning("a record of a %s cannot be read", role)  # of another version
                continue
            if member.is_reachable_from(self._host):
                found[member.address] = member
        return found


def _words(me: Announced) -> tuple[str, str]:
    fields = asdict(me)
    del fields["role"]
    return me.address, json.dumps(fields)


def _from_record(role: Role, record: str) -> Announced:
    fields = json.loads(record)
    return Announced(
        role,
        str(fields["id"]),
        str(fields["address"]),
        Incarnation(int(fields["incarnation"])),
        str(fields["host"]),
    )
