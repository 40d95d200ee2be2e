"""Every error a person can meet, and the code it has on each wire.

DiptychError
├── BadRequest     the caller can fix it            400  INVALID_ARGUMENT
├── NotFound       no such model, path or request   404  NOT_FOUND
├── OverQuota      the caller's own limit           429  RESOURCE_EXHAUSTED
├── Overloaded     ours: come back, Retry-After     503  UNAVAILABLE
├── Expired        the deadline passed              504  DEADLINE_EXCEEDED
├── Lost           a worker or a block is gone      503  UNAVAILABLE
├── Refused        peers that must not be paired    503  FAILED_PRECONDITION
├── Broken         our bug                          500  INTERNAL
└── Misconfigured  a process refuses to start       (never on a wire)
"""

TICKET_GONE = "ticket_gone"  # Lost with this code: the prompt must be computed again
NOT_FETCHED = "kv_not_fetched"  # likewise: holder and fetcher could not exchange it
WORKER_LEFT = "worker_left"  # Lost with this code: it was told to end, and did not die
CANCELLED = "cancelled"  # Refused with this code: the caller gave the request up before it arrived


class DiptychError(Exception):
    """Base of the tree. `code` is stable and machine-readable, `message` is for a person."""

    http_status = 500
    grpc_status = "INTERNAL"
    default_code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """Its class in the tree above; finer ones are private."""
        return next(c.__name__ for c in type(self).__mro__ if c.__module__ == __name__)


class BadRequest(DiptychError):
    """The request itself is wrong; the same request will fail again."""

    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    default_code = "invalid_value"


class NotFound(DiptychError):
    """The thing named does not exist."""

    http_status = 404
    grpc_status = "NOT_FOUND"
    default_code = "not_found"


class OverQuota(DiptychError):
    """The caller's own limit is used up."""

    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    default_code = "rate_limit_exceeded"


class Overloaded(DiptychError):
    """We have no room now; the same request may succeed later."""

    http_status = 503
    grpc_status = "UNAVAILABLE"
    default_code = "no_capacity"


class Expired(DiptychError):
    """A deadline passed before the work was done."""

    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"
    default_code = "upstream_timeout"


class Lost(DiptychError):
    """A worker, a ticket or a block is gone."""

    http_status = 503
    grpc_status = "UNAVAILABLE"
    default_code = "worker_lost"


class Refused(DiptychError):
    """Two parts that must not work together: other layout, weights, secret or role."""

    http_status = 503
    grpc_status = "FAILED_PRECONDITION"
    default_code = "pairing_refused"


class Broken(DiptychError):
    """A bug of ours."""


class Misconfigured(DiptychError):
    """A file, flag or variable a process will not start with: says which, and what it wants."""

    default_code = "misconfigured"
