"""Mutual TLS between stations: what one shows to others, how it dials, whom its server hears.

Files may be replaced at any time: a server looks at them before every handshake, a client before
every call. What runs goes on over the connection that it has. roles.py says who may call what.
"""

import datetime
import logging
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from diptych.config import Stationed
from diptych.core.errors import Misconfigured, Refused
from diptych.core.phases import Role
from diptych.transport.authority import Files, files_in
from diptych.transport.channel import OPTIONS, Dial, connect
from diptych.transport.renewed import RenewedChannel
from diptych.transport.roles import OPERATOR, ROLE_REFUSED, Holder, Station

log = logging.getLogger(__name__)

_Seen = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """What the files held at one time."""

    ca: bytes
    chain: bytes
    key: bytes = field(repr=False)
    holder: Holder

    @classmethod
    def read(cls, files: Files) -> Self:
        """ValueError unless everything fits together."""
        ca, chain, key = (p.read_bytes() for p in (files.ca, files.certificate, files.key))
        x509.load_pem_x509_certificates(ca)
        certificate = x509.load_pem_x509_certificates(chain)[0]
        try:
            public = load_pem_private_key(key, password=None).public_key()
        except TypeError:
            raise ValueError("the key is encrypted") from None
        if public != certificate.public_key():
            raise ValueError("the key belongs to another certificate")
        ends = certificate.not_valid_after_utc
        if ends <= datetime.datetime.now(datetime.UTC):
            raise ValueError(f"the certificate ended at {ends:%Y-%m-%d %H:%M} UTC")
        return cls(ca, chain, key, _holder_in(certificate))


class Credentials:
    """A station's certificate and key, and the CA that all it talks to must be of."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._turn = threading.Lock()  # gRPC's threads ask for servers
        self._seen = self._look()
        try:
            self._shown = Shown.read(files)
        except (OSError, ValueError) as error:
            raise Misconfigured(
                f"--station-ca {files.ca}, --station-certificate {files.certificate}, "
                f"--station-key {files.key}: {error}; expected PEM, as `diptych certs` writes it"
            ) from None

    @property
    def holder(self) -> Holder:
        """Who we are."""
        return self._shown.holder

    def dial(self, address: str) -> grpc.aio.Channel:
        """A `Dial`: the certificate of who answers at `host:port` must name the host."""

        def secure(shown: Shown) -> grpc.aio.Channel:
            own = grpc.ssl_channel_credentials(shown.ca, shown.key, shown.chain)
            return grpc.aio.secure_channel(address, own, options=OPTIONS)

        return RenewedChannel(self.newest, secure)

    def for_server(self) -> grpc.ServerCredentials:
        """Lets in whoever has a certificate of the CA."""
        served = self.newest()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            newest = self.newest()
            if newest is served:
                return None
            served = newest
            return _configuration(served)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(served),
            renewed,  # type: ignore[arg-type]  # None is no change, say the docs of gRPC
            require_client_authentication=True,
        )

    def newest(self) -> Shown:
        """What the files hold, or held when they last fitted together."""
        with self._turn:
            seen = self._look()
            if seen == self._seen:
                return self._shown
            self._seen = seen
            try:
                shown = Shown.read(self._files)
                if shown.holder.station is not self.holder.station:
                    raise ValueError(f"it is of {shown.holder}; we are {self.holder}")
            except (OSError, ValueError) as error:  # half of a pair, say; the next look sees more
                log.warning("certificate not reloaded, the last one stays: %s", error)
                return self._shown
            self._shown = shown
            log.info("certificate reloaded from=%s", self._files.certificate)
            return shown

    def _look(self) -> _Seen:
        files = self._files
        try:
            stats = [path.stat() for path in (files.ca, files.certificate, files.key)]
        except OSError:
            return ()
        return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)


def load(settings: Stationed, role: Role | None = None) -> Credentials | None:
    """Those of the settings, None if they name none; Misconfigured if some are missing or foreign.

    `role` is what the process is. Operators' commands are nothing: what they may, the callee says.
    """
    given = {
        "--station-ca": settings.station_ca,
        "--station-certificate": settings.station_certificate,
        "--station-key": settings.station_key,
    }
    if not any(given.values()):
        return None
    missing = [flag for flag, path in given.items() if path is None]
    if missing:
        raise Misconfigured(f"{', '.join(given)} belong together; missing: {', '.join(missing)}")
    ca, certificate, key = (path for path in given.values() if path is not None)
    credentials = Credentials(Files(ca, certificate, key))
    if role is not None and credentials.holder.station is not Station.of(role):
        raise Misconfigured(
            f"--station-certificate {certificate}: it is of {credentials.holder}; expected one "
            f"of {Station.of(role)}/NAME"
        )
    return credentials


def dial_of(credentials: Credentials | None) -> Dial:
    """How to call other stations: plainly without credentials."""
    return connect if credentials is None else credentials.dial


def operator_dial(given: Credentials | None, folder: Path | None) -> Dial:
    """How a person's command calls: as it was told, else as operator of a folder's platform.

    `folder` is where that platform keeps its certificates; None: it has none.
    """
    if given is None and folder is not None:
        given = Credentials(files_in(folder, OPERATOR))
    return dial_of(given)


def holder_of(context: Any) -> Holder | None:
    """Who calls, by the one URI in the certificate; names without a type are not looked at.

    Refused if the certificate has ended since the connection began.
    """
    shown = context.auth_context()
    for pem in shown.get("x509_pem_cert", ()):
        if _ends_at(pem) <= datetime.datetime.now(datetime.UTC):
            raise Refused(f"the caller's certificate ended at {_ends_at(pem):%Y-%m-%d %H:%M} UTC")
    uris = list(shown.get("peer_uri", ()))
    return Holder.parse(uris[0].decode(errors="replace")) if len(uris) == 1 else None


def check_claim(context: Any, role: Role) -> None:
    """Refused if who calls says that it is what its certificate does not say."""
    holder = holder_of(context)
    if holder is not None and holder.station is not Station.of(role):
        raise Refused(f"{holder} says that it is a {role}", code=ROLE_REFUSED)


@lru_cache(maxsize=1024)  # of as many callers
def _ends_at(pem: bytes) -> datetime.datetime:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def _holder_in(certificate: x509.Certificate) -> Holder:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    holder = Holder.parse(uris[0]) if len(uris) == 1 else None
    if holder is None:
        raise ValueError("the certificate does not name one URI spiffe://diptych/ROLE/NAME")
    return holder


def _configuration(shown: Shown) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(shown.key, shown.chain)], root_certificates=shown.ca
    )
