"""A CA of our own and what it gives out."""

import datetime
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from diptych.core.errors import Misconfigured
from diptych.transport.authority import (
    LOOPBACK,
    Authority,
    Files,
    check_host,
    files_in,
    hosts_of,
    usual_hosts,
)
from diptych.transport.roles import OPERATOR, Holder, Station

PREFILL = Holder(Station.PREFILL, "prefill-1")


def read(files: Files) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def left(certificate: x509.Certificate) -> datetime.timedelta:
    return certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)


def test_a_certificate_says_who_for_whom_and_how_long(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "c")
    files = authority.issue(PREFILL, ["prefill-1", "10.0.0.7", "::1", "10.0.0.7"], days=30)
    certificate = read(files)
    certificate.verify_directly_issued_by(authority.certificate)
    assert hosts_of(files.certificate) == (PREFILL, ["prefill-1", "10.0.0.7", "::1"])
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca
    assert datetime.timedelta(days=29) < left(certificate) <= datetime.timedelta(days=30)
    key = load_pem_private_key(files.key.read_bytes(), password=None)
    assert key.public_key() == certificate.public_key()


def test_files_are_the_owners_alone_and_drafts_do_not_stay(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        Authority(tmp_path / "c").issue(OPERATOR, [])
    finally:
        os.umask(old)
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "c").iterdir()}
    names = ("ca.crt", "ca.key", "operator.crt", "operator.key")
    assert modes == dict.fromkeys(names, 0o600)


def test_the_ca_is_made_once(tmp_path: Path) -> None:
    first, second = Authority(tmp_path), Authority(tmp_path)
    assert first.certificate == second.certificate
    constraints = first.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)


def test_nothing_is_valid_for_longer_than_its_ca(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue(PREFILL, [], days=100_000)
    assert read(files).not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_a_certificate_is_kept_until_a_third_of_its_time_is_left(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = read(authority.keep(PREFILL, LOOPBACK, days=30))
    assert read(authority.keep(PREFILL, LOOPBACK, days=30)) == first
    now = datetime.datetime.now(datetime.UTC)
    nearly_over = authority.issue(PREFILL, LOOPBACK, days=0.001)  # and valid since five minutes
    assert read(nearly_over).not_valid_after_utc < now + datetime.timedelta(minutes=2)
    renewed = read(authority.keep(PREFILL, LOOPBACK, days=30))
    assert left(renewed) > datetime.timedelta(days=29)


@pytest.mark.parametrize("harm", ["key gone", "of another ca", "cut"])
def test_what_cannot_be_used_is_made_anew(tmp_path: Path, harm: str) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    files = authority.keep(PREFILL, LOOPBACK)
    if harm == "key gone":
        files.key.unlink()
    elif harm == "cut":
        files.certificate.write_bytes(files.certificate.read_bytes()[:100])
    else:
        theirs = other.issue(PREFILL, LOOPBACK)
        files.certificate.write_bytes(theirs.certificate.read_bytes())
    certificate = read(authority.keep(PREFILL, LOOPBACK))
    certificate.verify_directly_issued_by(authority.certificate)
    key = load_pem_private_key(files.key.read_bytes(), password=None)
    assert key.public_key() == certificate.public_key()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ca.key", b"?", "expected PEM"),
        ("ca.crt", b"?", "expected PEM"),
        ("ca.crt", None, "ca.key does not belong to ca.crt"),
    ],
)
def test_a_broken_ca_is_told_by_its_files(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    Authority(tmp_path / "a")
    Authority(tmp_path / "b")
    (tmp_path / "a" / name).write_bytes(content or (tmp_path / "b" / name).read_bytes())
    with pytest.raises(Misconfigured, match=words):
        Authority(tmp_path / "a")


def test_a_copy_without_the_ca_key_makes_no_other_ca(tmp_path: Path) -> None:
    Authority(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(Misconfigured, match=r"has a ca.crt without its ca.key"):
        Authority(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ca.crt"]


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match=r"file: File exists; expected a writable folder"):
        Authority(tmp_path / "file")


@pytest.mark.parametrize("host", ["10.0.0.7:7000", "a b", "", "-a", "http://a", "a..b", "*.a"])
def test_a_host_has_neither_port_nor_scheme(host: str) -> None:
    with pytest.raises(ValueError, match="expected the name or the address of a host"):
        check_host(host)


def test_a_station_is_called_by_its_name_and_on_its_machine(tmp_path: Path) -> None:
    assert usual_hosts(PREFILL) == ["prefill-1", *LOOPBACK]
    assert usual_hosts(Holder(Station.PREFILL, "a_b")) == list(LOOPBACK)
    assert files_in(tmp_path, PREFILL).key == tmp_path / "prefill-1.key"
    assert files_in(tmp_path, Holder(Station.STORE, "a")).key == tmp_path / "store-a.key"
    assert files_in(tmp_path, OPERATOR).certificate == tmp_path / "operator.crt"
