"""The one translator between our error tree and gRPC: class and code ride in trailing metadata."""

from collections.abc import Sequence
from urllib.parse import quote, unquote

import grpc
import grpc.aio

from diptych.core import errors
from diptych.core.errors import DiptychError

KIND = "diptych-kind"  # class of core/errors.py
CODE = "diptych-code"
PARAM = "diptych-param"
RETRY_AFTER = "diptych-retry-after-ms"

_KINDS: dict[str, type[DiptychError]] = {
    cls.__name__: cls
    for cls in (
        errors.BadRequest,
        errors.NotFound,
        errors.OverQuota,
        errors.Overloaded,
        errors.Expired,
        errors.Lost,
        errors.Refused,
        errors.Broken,
    )
}
# What a status means when no peer of ours spoke: the transport's own verdicts.
_BARE: dict[grpc.StatusCode, type[DiptychError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.Expired,
    grpc.StatusCode.UNIMPLEMENTED: errors.Refused,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Broken,  # a message above the limit
}

# What to look at when no connection comes about, by a part of what gRPC says about it.
_NOT_CONNECTED = "failed to connect to all addresses"
_HINTS = {
    "Socket closed": "does it ask for a certificate (--station-ca), or refuse ours?",
    "Connection reset": "does it ask for a certificate (--station-ca), or refuse ours?",
    "WRONG_VERSION_NUMBER": "it talks without TLS, and we were given --station-ca",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is over, or of another CA than --station-ca",
    "Hostname Verification Check failed": "its certificate names other hosts than this one",
}

Metadata = tuple[tuple[str, str], ...]


def to_status(error: DiptychError) -> tuple[grpc.StatusCode, Metadata]:
    """What a server aborts with; the message itself travels as the status details."""
    fields = [(KIND, kind_of(error)), (CODE, error.code)]
    if error.param is not None:
        fields.append((PARAM, quote(error.param)))
    if error.retry_after_s is not None:
        fields.append((RETRY_AFTER, str(round(error.retry_after_s * 1000))))
    return grpc.StatusCode[error.grpc_status], tuple(fields)


def from_rpc(error: grpc.aio.AioRpcError) -> DiptychError:
    """The error a peer raised; Lost, Expired, Refused or Broken if the transport itself failed."""
    sent = _texts(error.trailing_metadata())
    message = error.details() or error.code().name
    if KIND not in sent:
        said = f"{error.code().name}: {message}{_hint(message)}"
        return _BARE.get(error.code(), errors.Lost)(said)
    retry_ms = sent.get(RETRY_AFTER, "")
    return make(
        sent[KIND],
        sent.get(CODE, ""),
        message,
        param=unquote(sent[PARAM]) if PARAM in sent else None,
        retry_after_s=int(retry_ms) / 1000 if retry_ms.isdigit() else None,
    )


def make(
    kind: str,
    code: str,
    message: str,
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
) -> DiptychError:
    """The error of a class by name; one this version does not know is Broken."""
    cls = _KINDS.get(kind, errors.Broken)
    return cls(message, code=code or None, param=param, retry_after_s=retry_after_s)


def kind_of(error: DiptychError) -> str:
    """Name of the nearest class that has a wire form: a peer may not know our private ones."""
    return next((c.__name__ for c in type(error).__mro__ if c.__name__ in _KINDS), "Broken")


def _hint(message: str) -> str:
    if _NOT_CONNECTED not in message:
        return ""
    return next((f" ({hint})" for part, hint in _HINTS.items() if part in message), "")


def _texts(
    metadata: Sequence[tuple[str, str | bytes]] | grpc.aio.Metadata | None,
) -> dict[str, str]:
    pairs = tuple(metadata or ())
    return {str(key): value for key, value in pairs if isinstance(value, str)}
