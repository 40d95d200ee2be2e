"""Who may call what between stations: one table, pure. transport/tls.py proves who somebody is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Self

from diptych.core.errors import BadRequest, Refused
from diptych.core.phases import Role

ROLE_REFUSED = "role_refused"
PACKAGE = "diptych.contract"


class Station(StrEnum):
    """What a certificate says that its holder is."""

    GATEWAY = auto()
    ROUTER = auto()
    PREFILL = auto()
    DECODE = auto()  # hybrid workers, too
    STORE = auto()
    VISION = auto()
    OPERATOR = auto()  # a person at a terminal, and `diptych up`

    @classmethod
    def of(cls, role: Role) -> Self:
        """That of a process."""
        return cls(Role.DECODE if role is Role.HYBRID else role)


_URI = re.compile(rf"spiffe://diptych/({'|'.join(Station)})/([A-Za-z0-9._-]{{1,128}})")


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a certificate was given to."""

    station: Station
    name: str

    @property
    def uri(self) -> str:
        """As the certificate says it: its one subject alternative name of the kind URI."""
        return f"spiffe://diptych/{self.station}/{self.name}"

    @classmethod
    def parse(cls, uri: str) -> Self | None:
        """None if it names no station of ours."""
        found = _URI.fullmatch(uri)
        return None if found is None else cls(Station(found[1]), found[2])

    @classmethod
    def read(cls, text: str) -> Self:
        """From ROLE/NAME, as people write it; BadRequest if it is not that."""
        holder = cls.parse(f"spiffe://diptych/{text}")
        if holder is None:
            raise BadRequest(
                f"{text}: expected ROLE/NAME, with a role of {', '.join(Station)} and a name of "
                "letters, digits, dots, dashes and underscores"
            )
        return holder

    def __str__(self) -> str:
        return f"{self.station}/{self.name}"


OPERATOR = Holder(Station.OPERATOR, "operator")

Callers = frozenset[Station]

_WORKERS = frozenset({Station.PREFILL, Station.DECODE})
_SESSION: Mapping[str, Callers] = {"Worker/Session": frozenset({Station.GATEWAY, Station.ROUTER})}
_LOOKING = frozenset({Station.GATEWAY, Station.ROUTER, Station.OPERATOR})
_OPERATOR = frozenset({Station.OPERATOR})

# By the station that serves it: the same method may be open to others elsewhere.
CALLERS: Mapping[Station, Mapping[str, Callers]] = {
    Station.ROUTER: {
        "Router/Place": frozenset({Station.GATEWAY}),
        "Router/Report": _WORKERS | {Station.GATEWAY, Station.VISION},
        "Router/Status": _LOOKING,
        "Router/Watch": _LOOKING,
        "Router/Drain": _LOOKING,
        "Router/ShareLedger": frozenset({Station.ROUTER}),
    },
    Station.PREFILL: {
        **_SESSION,
        "Blocks/GetBlocks": frozenset({Station.DECODE}),
        "Blocks/Renew": frozenset({Station.DECODE, Station.GATEWAY}),  # while none can take it
        "Blocks/Commit": frozenset({Station.DECODE}),
        "Blocks/Abort": frozenset({Station.DECODE}),
    },
    Station.DECODE: _SESSION,
    Station.STORE: {
        "Blocks/GetBlocks": _WORKERS,
        "Store/Greet": _WORKERS,
        "Store/Lookup": _WORKERS,
        "Store/PutBlocks": _WORKERS,
        "Store/ShareBlocks": _WORKERS,
        "Store/Release": _WORKERS,
        "Store/Watch": frozenset({Station.ROUTER}),
        "Store/Stats": frozenset({Station.GATEWAY, Station.OPERATOR}),
        "Store/List": _OPERATOR,
        "Store/Verify": _OPERATOR,
        "Store/Collect": _OPERATOR,
        "Store/Remove": _OPERATOR,
    },
}


def callers(method: str, at: Station) -> Callers:
    """Who may call a method (`/package.Service/Method`) of a station; nobody if nothing says so."""
    name = method.removeprefix(f"/{PACKAGE}.")
    return CALLERS.get(at, {}).get(name, frozenset())


def check(method: str, caller: Holder | None, at: Station) -> None:
    """Refused, naming the method, who called and who may."""
    may = callers(method, at)
    if caller is not None and caller.station in may:
        return
    name = method.removeprefix(f"/{PACKAGE}.").replace("/", ".")
    who = "a certificate of no station" if caller is None else str(caller)
    allowed = ", ".join(sorted(may)) or "nobody: it is not in the table of roles"
    raise Refused(f"{name} of {at}: called by {who}; allowed to {allowed}", code=ROLE_REFUSED)
