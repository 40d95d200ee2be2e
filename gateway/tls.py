"""TLS of a public port. A certificate that was replaced on disk is used from the next handshake."""

import logging
import ssl
from pathlib import Path

from diptych.core.errors import Misconfigured

log = logging.getLogger(__name__)

_Seen = tuple[tuple[int, int, int], ...]


class Certificate:
    """A certificate chain and its key, in PEM files that may be replaced at any time."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._seen = self._look()
        try:
            self._newest = self._load()
        except (OSError, ssl.SSLError) as error:
            raise Misconfigured(
                f"--tls-certificate {certificate} with --tls-key {key}: {error}; expected a PEM "
                "chain and the unencrypted key that belongs to it"
            ) from None
        self.num_reloads = 0

    def context(self) -> ssl.SSLContext:
        """For a server; serves whatever the files hold."""
        context = self._load()
        context.sni_callback = self._choose
        return context

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Called at every handshake, with a server name or without."""
        self._reload()
        connection.context = self._newest

    def _reload(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._newest = self._load()
        except (OSError, ssl.SSLError) as error:  # half of the pair, say: the next handshake looks
            log.warning("certificate not reloaded, the last one stays: %s", error)
            return
        self.num_reloads += 1
        log.info("certificate reloaded from=%s", self._certificate)

    def _look(self) -> _Seen:
        try:
            stats = [path.stat() for path in (self._certificate, self._key)]
        except OSError:
            return ()
        return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._certificate, self._key, _no_password)
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def load(
    certificate: Path | None, key: Path | None, client_ca: Path | None = None
) -> Certificate | None:
    """None if neither was given; Misconfigured if only one was."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise Misconfigured("--tls-certificate and --tls-key belong together; one is missing")
    return Certificate(certificate, key, client_ca)


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted")  # or OpenSSL would ask on the terminal
