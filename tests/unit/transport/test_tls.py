"""What a station shows to others: read, checked, read again."""

import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from diptych.config import RouterSettings, Stationed
from diptych.core.errors import Misconfigured, Refused
from diptych.core.phases import Role
from diptych.testing.papers import Papers
from diptych.transport.authority import Files
from diptych.transport.channel import connect
from diptych.transport.roles import Holder, Station
from diptych.transport.tls import Credentials, check_claim, holder_of, load, operator_dial


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path / "certificates")


def settings(files: Files) -> Stationed:
    return Stationed(
        station_ca=files.ca, station_certificate=files.certificate, station_key=files.key
    )


def test_nothing_given_is_no_tls() -> None:
    assert load(RouterSettings()) is None
    assert operator_dial(None, None) is connect


def test_all_three_or_none(papers: Papers) -> None:
    files = papers.issue("router/router-1")
    part = Stationed(station_ca=files.ca, station_key=files.key)
    with pytest.raises(Misconfigured, match="belong together; missing: --station-certificate"):
        load(part)


def test_a_process_takes_a_certificate_of_its_own_role_alone(papers: Papers) -> None:
    given = settings(papers.issue("decode/decode-1"))
    for role in (Role.DECODE, Role.HYBRID):
        credentials = load(given, role)
        assert credentials is not None
        assert credentials.holder == Holder(Station.DECODE, "decode-1")
    assert load(given) is not None
    with pytest.raises(Misconfigured, match=r"it is of decode/decode-1; expected one of store/NAM"):
        load(given, Role.STORE)


def encrypt(files: Files) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("encrypted", "the key is encrypted"),
        ("of another", "the key belongs to another certificate"),
        ("over", "the certificate ended at 20"),
        ("of nobody", "does not name one URI spiffe://diptych/ROLE/NAME"),
        ("no pem", "expected PEM, as `diptych certs` writes it"),
        ("gone", "No such file"),
    ],
)
def test_what_cannot_be_shown_is_refused_at_start(papers: Papers, harm: str, words: str) -> None:
    files = papers.issue("store/store-1", days=-0.001 if harm == "over" else 1)
    if harm == "encrypted":
        encrypt(files)
    elif harm == "of another":
        files.key.write_bytes(papers.issue("store/store-2").key.read_bytes())
    elif harm == "of nobody":
        ca = papers.authority.folder
        files = Files(ca / "ca.crt", ca / "ca.crt", ca / "ca.key")
    elif harm == "no pem":
        files.ca.write_text("?")
    elif harm == "gone":
        files.key.unlink()
    with pytest.raises(Misconfigured, match=words) as caught:
        Credentials(files)
    assert str(files.certificate) in caught.value.message


def test_half_of_a_pair_is_not_taken_and_the_other_half_completes_it(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = papers.issue("store/store-1")
    credentials = Credentials(files)
    before = files.certificate.read_bytes()
    following = Papers(papers.authority.folder).issue("store/store-2")  # beside it
    files.certificate.write_bytes(following.certificate.read_bytes())
    assert credentials.newest().chain == before
    assert credentials.newest().chain == before
    assert [r.levelname for r in caplog.records] == ["WARNING"]  # once, not at every look
    files.key.write_bytes(following.key.read_bytes())
    assert credentials.newest().chain == following.certificate.read_bytes()
    assert credentials.holder.name == "store-2"
    assert "certificate reloaded" in caplog.text


def test_a_renewed_certificate_of_another_role_is_not_taken(papers: Papers) -> None:
    files = papers.issue("store/store-1")
    credentials = Credentials(files)
    other = papers.issue("decode/decode-1")
    files.certificate.write_bytes(other.certificate.read_bytes())
    files.key.write_bytes(other.key.read_bytes())
    assert credentials.newest().holder == credentials.holder == Holder(Station.STORE, "store-1")


def test_an_operator_uses_what_was_given_else_that_of_the_platform(papers: Papers) -> None:
    papers.issue("operator/operator")
    given = papers.of("gateway/gateway-1")
    assert operator_dial(given, papers.authority.folder) == given.dial
    assert operator_dial(None, papers.authority.folder) is not connect
    with pytest.raises(Misconfigured, match=r"operator\.crt"):
        operator_dial(None, papers.authority.folder / "nothing")


class Context:
    """A call as gRPC shows it."""

    def __init__(self, **shown: list[bytes]) -> None:
        self._shown = shown

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._shown


def test_a_caller_is_who_its_certificate_says_while_it_is_valid(papers: Papers) -> None:
    holder = Holder(Station.STORE, "store-1")
    uri = holder.uri.encode()
    pem = papers.issue("store/store-1").certificate.read_bytes()
    assert holder_of(Context(x509_pem_cert=[pem], peer_uri=[uri])) == holder
    over = papers.issue("store/store-1", days=-0.001).certificate.read_bytes()
    with pytest.raises(Refused, match="the caller's certificate ended at 20"):
        holder_of(Context(x509_pem_cert=[over], peer_uri=[uri]))


def test_who_shows_nothing_is_nobody() -> None:
    assert holder_of(Context()) is None
    assert holder_of(Context(transport_security_type=[b"insecure"])) is None
    assert holder_of(Context(x509_common_name=[b"operator/operator"])) is None
    name = Holder(Station.OPERATOR, "operator").uri.encode()
    assert holder_of(Context(x509_subject_alternative_name=[name], peer_dns=[name])) is None
    assert holder_of(Context(peer_uri=[name, name])) is None
    assert holder_of(Context(peer_uri=[b"\xff"])) is None


def test_a_claim_is_held_against_the_certificate_where_there_is_one() -> None:
    decode = Context(peer_uri=[Holder(Station.DECODE, "d").uri.encode()])
    for role in (Role.DECODE, Role.HYBRID):
        check_claim(decode, role)
    check_claim(Context(), Role.PREFILL)
    with pytest.raises(Refused, match="decode/d says that it is a prefill"):
        check_claim(decode, Role.PREFILL)
