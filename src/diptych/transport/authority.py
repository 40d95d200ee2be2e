"""A certificate authority of our own, in a folder, and the certificates it gives to stations."""

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from diptych.core.errors import Misconfigured
from diptych.transport.roles import Holder

FOLDER = "certificates"  # in the data folder, of `diptych up` and `diptych certs`
CA_DAYS = 3650
DAYS = 365
CLOCKS_APART = datetime.timedelta(minutes=5)  # a station's clock may be behind ours
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")


@dataclass(frozen=True, slots=True)
class Files:
    """What a station is given."""

    ca: Path
    certificate: Path
    key: Path


class Authority:
    """`ca.crt` and `ca.key` of a folder, made there once; beside them, a pair a station."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / "ca.crt").exists() and not (folder / "ca.key").exists():
            raise Misconfigured(
                f"{folder} has a ca.crt without its ca.key, which is kept elsewhere"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._key = _read_key(_once(folder / "ca.key", _pem_of_key(_new_key())))
            self.certificate = x509.load_pem_x509_certificate(
                _once(folder / "ca.crt", _pem(_certify_itself(self._key)))
            )
        except OSError as error:
            raise Misconfigured(f"{folder}: {error.strerror}; expected a writable folder") from None
        except ValueError as error:
            raise Misconfigured(f"{folder}/ca.crt with ca.key: {error}; expected PEM") from None
        if self.certificate.public_key() != self._key.public_key():
            raise Misconfigured(f"{folder}: ca.key does not belong to ca.crt")

    def files(self, holder: Holder) -> Files:
        """Where a station's certificate is, or would be."""
        return files_in(self.folder, holder)

    def issue(self, holder: Holder, hosts: Sequence[str], days: float = DAYS) -> Files:
        """Give a station a new key and certificate; what was there is replaced."""
        key = _new_key()
        now = datetime.datetime.now(datetime.UTC)
        ends = min(now + datetime.timedelta(days=days), self.certificate.not_valid_after_utc)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(holder.uri)]
        names += map(_general_name, dict.fromkeys(hosts))
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _draft(_named(str(holder)), self.certificate.subject, key, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        files = self.files(holder)
        _write(files.key, _pem_of_key(key))
        _write(files.certificate, _pem(certificate))
        return files

    def keep(self, holder: Holder, hosts: Sequence[str], days: float = DAYS) -> Files:
        """The certificate that is there, or a new one when a third of its time or less is left."""
        files = self.files(holder)
        with suppress(OSError, ValueError):
            found = x509.load_pem_x509_certificate(files.certificate.read_bytes())
            left = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
            whole = found.not_valid_after_utc - found.not_valid_before_utc
            if files.key.is_file() and left > whole / 3:
                found.verify_directly_issued_by(self.certificate)
                return files
        return self.issue(holder, hosts, days)


def files_in(folder: Path, holder: Holder) -> Files:
    """Where a folder of certificates keeps those of a station."""
    is_said = holder.name.startswith(holder.station)
    name = holder.name if is_said else f"{holder.station}-{holder.name}"
    return Files(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")


def hosts_of(certificate: Path) -> tuple[Holder, list[str]]:
    """Whom a certificate was given to, and the hosts it names; ValueError if it is not ours."""
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ValueError(f"{certificate} names nobody") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    holder = Holder.parse(uris[0]) if len(uris) == 1 else None
    if holder is None:
        raise ValueError(f"{certificate} is of no station")
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return holder, [*names.get_values_for_type(x509.DNSName), *addresses]


def ends_at(certificate: Path) -> datetime.datetime:
    """When a certificate is over."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def usual_hosts(holder: Holder) -> list[str]:
    """Its own name, if a host may be called so, and this machine."""
    own = [holder.name] if _HOST_NAME.fullmatch(holder.name) else []
    return [*own, *LOOPBACK]


def check_host(host: str) -> None:
    """ValueError unless it is the name or the address of a host."""
    _general_name(host)


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host}: expected the name or the address of a host, without a port")
    return x509.DNSName(host)


def _certify_itself(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _named(f"Diptych stations {secrets.token_hex(4)}")
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=CA_DAYS)
    return (
        _draft(name, name, key, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _draft(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    begins = min(datetime.datetime.now(datetime.UTC), ends) - CLOCKS_APART
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _key_usage(**used: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: used.get(name, False) for name in names})


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:  # it is encrypted
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not of an elliptic curve")
    return key


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _once(path: Path, content: bytes) -> bytes:
    """Write a file unless it is there; what it holds."""
    if not path.exists():
        draft = _draft_of(path, content)
        with suppress(FileExistsError):  # whoever links first wins; the others read
            os.link(draft, path)
        draft.unlink()
    return path.read_bytes()


def _write(path: Path, content: bytes) -> None:
    os.replace(_draft_of(path, content), path)


def _draft_of(path: Path, content: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return draft
