"""What a journey hears and what it orders done. Values only."""

from dataclasses import dataclass
from enum import StrEnum, auto

from diptych.core.errors import DiptychError
from diptych.core.ids import Rank, WorkerId
from diptych.core.phases import Finish, Phase
from diptych.core.step import Logprob, Row


class Station(StrEnum):
    """Where a request can be known."""

    PREFILL = auto()
    DECODE = auto()  # or hybrid


class Left(StrEnum):
    """What a failed attempt left behind."""

    NOTHING = auto()
    TICKET = auto()  # the prompt's KV still waits at prefill
    TOKENS = auto()  # output that was sent; the next attempt is forced through it


# Events. Those with an attempt are dropped when it is over.


@dataclass(frozen=True, slots=True)
class PlacedPrefill:
    """The router chose where the prompt is computed."""

    attempt: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class PlacedHybrid:
    """The router chose one worker for prompt and output."""

    attempt: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class PlacedDecode:
    """The router chose where the output goes on."""

    attempt: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class Accepted:
    """Prefill has the prompt; its KV will be fetched with this ticket."""

    attempt: int
    ticket: bytes


@dataclass(frozen=True, slots=True)
class Progressed:
    """Prefill computed positions."""

    attempt: int
    tokens: int
    last_chunk_started: bool


@dataclass(frozen=True, slots=True)
class Reserved:
    """Decode set room aside."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Output:
    """A station sampled tokens."""

    attempt: int
    station: Station
    row: Row


@dataclass(frozen=True, slots=True)
class Failed:
    """A station will not go on with the attempt; Overloaded = it has no room now."""

    attempt: int
    station: Station
    error: DiptychError


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The ticket can no longer be renewed."""

    attempt: int


@dataclass(frozen=True, slots=True)
class LeaseOpened:
    """The router has the request: it may have to wait, but not for a router."""


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The router refused (Overloaded, Expired) or is gone (Lost)."""

    error: DiptychError


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Enough:
    """Nobody wants more: the client left, or a stop string ended the answer."""


Event = (
    PlacedPrefill
    | PlacedHybrid
    | PlacedDecode
    | Accepted
    | Progressed
    | Reserved
    | Output
    | Failed
    | Lapsed
    | LeaseOpened
    | LeaseEnded
    | Tick
    | Enough
)


# Effects.


@dataclass(frozen=True, slots=True)
class Place:
    """Open a lease; with a phase, register a request that already runs."""

    attempt: int
    phase: Phase | None = None
    prefill_worker: WorkerId | None = None
    decode_worker: WorkerId | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the router how far it is."""

    phase: Phase
    tokens: int
    last_chunk_started: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """Ask the router for the next attempt.

    `partner` holds the KV that the failed worker could not fetch: the fault lies between them.
    """

    attempt: int
    failed_worker: str
    why: str
    left: Left
    code: str  # of the error
    kind: str  # its class
    partner: str = ""


@dataclass(frozen=True, slots=True)
class OpenPrefill:
    """Compute the prompt and the forced output there."""

    attempt: int
    rank: Rank
    forced: tuple[int, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Renew:
    """Keep the prompt's KV waiting."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set room aside there."""

    attempt: int
    rank: Rank
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Go on there: from a ticket after Reserve, or from the prompt without one."""

    attempt: int
    rank: Rank
    forced: tuple[int, ...]
    ticket: bytes | None
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell a station to forget an attempt."""

    attempt: int
    station: Station
    rank: Rank


@dataclass(frozen=True, slots=True)
class Emit:
    """New output for the client; a stop token at its end is counted but not shown."""

    token_ids: tuple[int, ...]
    stop_token: int | None = None
    logprobs: tuple[Logprob, ...] = ()  # one for each token, if asked for
    prompt_logprobs: tuple[Logprob, ...] = ()  # with the first token, likewise
    cached_tokens: int = 0  # of the prompt
    cached_memory: int = 0  # of these: brought from the cache tier's memory
    cached_disk: int = 0  # likewise, from its disk


@dataclass(frozen=True, slots=True)
class End:
    """The engine ended the output."""

    finish: Finish
    stop_token: int | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """No way left."""

    error: DiptychError


Effect = Place | Report | Again | OpenPrefill | Renew | Reserve | Start | Cancel | Emit | End | Fail
