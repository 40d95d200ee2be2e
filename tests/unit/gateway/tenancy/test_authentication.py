"""Who asks."""

from pathlib import Path
from typing import Any

import pytest

from diptych.core.errors import DiptychError, Misconfigured, OverQuota
from diptych.gateway.errors import headers as error_headers
from diptych.gateway.tenancy.authentication import (
    CANARY,
    Authentication,
    Why,
    canary_token,
    refuse_open_port,
)
from diptych.gateway.tenancy.credential import issue
from diptych.gateway.tenancy.desk import Actor, Desk, Wish
from diptych.gateway.tenancy.keyfile import KeyFile
from diptych.gateway.tenancy.keys import ANONYMOUS, Limits, Scope
from diptych.gateway.tenancy.office import Office
from diptych.gateway.tenancy.peppers import Peppers
from diptych.testing.clock import FakeClock

BY = Actor("tester")
HERE = "192.0.2.1"


class Place:
    """An authentication with its desk and clock."""

    def __init__(self, office: Office, **fields: Any) -> None:
        self.clock = FakeClock(2e9)
        self.failures: list[tuple[str, str]] = []
        self.peppers = Peppers((b"p" * 16,))
        self.store = office.store
        self.desk = Desk(office.store, self.peppers, office.audit, self.clock)
        self.authentication = Authentication(
            office.store,
            fields.pop("peppers", self.peppers),
            on_failure=lambda address, key_id: self.failures.append((address, key_id)),
            now_s=self.clock,
            **{"is_open": True, "canary": "canary-x", **fields},
        )

    async def key(self, **fields: Any) -> str:
        return (await self.desk.create(BY, Wish("n", **fields)))[1]

    async def ask(self, key: str | None, address: str = HERE) -> Any:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return await self.authentication.identify(headers, address)

    async def refusal(self, headers: dict[str, str], address: str = HERE) -> DiptychError:
        with pytest.raises(DiptychError) as caught:
            await self.authentication.identify(headers, address)
        return caught.value


@pytest.fixture
def place(office: Office) -> Place:
    return Place(office)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("sent", [{}, bearer("anything"), {"x-api-key": "x"}])
async def test_without_any_key_a_loopback_port_is_open(place: Place, sent: dict[str, str]) -> None:
    assert await place.authentication.identify(sent, HERE) is ANONYMOUS


async def test_the_first_key_closes_it(place: Place) -> None:
    key = await place.key(tenant="acme")
    caller = await place.ask(key)
    assert caller.tenant == "acme"
    assert key.startswith(f"sk-{caller.key_id}-")
    assert (await place.refusal({})).http_status == 401
    await place.desk.revoke(BY, caller.key_id)
    assert (await place.refusal({})).http_status == 401  # and a revoked one does not open it again


async def test_a_public_port_is_never_open(office: Office) -> None:
    place = Place(office, is_open=False)
    assert (await place.refusal(bearer("anything"))).http_status == 401


async def test_who_may_be_anonymous_need_not_send_a_key_but_not_a_wrong_one(office: Office) -> None:
    place = Place(office, is_open=False, allows_anonymous=True)
    assert await place.ask("anything") is ANONYMOUS
    key = await place.key(tenant="acme")
    assert (await place.ask(key)).tenant == "acme"
    assert await place.ask(None) is ANONYMOUS
    assert (await place.refusal(bearer("anything"))).http_status == 401


async def test_all_wrong_keys_get_the_same_answer(place: Place) -> None:
    valid, revoked = await place.key(), await place.key()
    expired = await place.key(expires_s=place.clock.now_s + 5)
    elsewhere = await place.key(networks=("10.0.0.0/8",))
    await place.desk.revoke(BY, revoked.split("-")[1])
    place.clock.advance(5)
    wrong = [
        {},
        bearer(""),
        {"authorization": "Basic dXNlcjpwYXNz"},
        bearer("sk-nonsense"),
        bearer("ключ"),
        bearer(issue().text),
        bearer(issue(valid.split("-")[1]).text),
        bearer(revoked),
        bearer(expired),
        bearer(elsewhere),
        bearer(valid) | {"x-api-key": revoked},
    ]
    said = [await place.refusal(headers, f"192.0.2.{i}") for i, headers in enumerate(wrong)]
    assert {error.message for error in said} == {said[0].message}
    for error in said:
        assert (error.http_status, error.code) == (401, "invalid_api_key")
        assert error_headers(error) == {"www-authenticate": "Bearer"}
    assert await place.ask(valid)
    assert place.authentication.failures == {
        Why.MISSING: 1,
        Why.SEVERAL: 1,
        Why.MALFORMED: 4,
        Why.WRONG: 2,
        Why.EXPIRED: 2,
        Why.ADDRESS: 1,
        Why.TOO_OFTEN: 0,
    }


async def test_a_key_may_come_in_either_header_or_the_same_in_both(place: Place) -> None:
    key = await place.key()
    for headers in (
        {"x-api-key": key},
        bearer(key) | {"x-api-key": key},
        {"authorization": f"bearer {key}"},
    ):
        assert (await place.authentication.identify(headers, HERE)).key_id == key.split("-")[1]


async def test_an_address_list_is_kept_to(place: Place) -> None:
    key = await place.key(networks=("10.0.0.0/8", "2001:db8::/32"))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1"):
        assert await place.ask(key, address)
    for address in ("11.1.2.3", "unknown", "2001:db9::1"):
        assert (await place.refusal(bearer(key), address)).http_status == 401


async def test_a_rotated_secret_overlaps_as_long_as_said(place: Place) -> None:
    old = await place.key()
    key_id = old.split("-")[1]
    _, new = await place.desk.rotate(BY, key_id, overlap_s=60)
    assert (await place.ask(old)).key_id == (await place.ask(new)).key_id == key_id
    place.clock.advance(60)
    assert (await place.refusal(bearer(old))).http_status == 401
    assert await place.ask(new)
    _, newest = await place.desk.rotate(BY, key_id, overlap_s=0)
    assert (await place.refusal(bearer(new))).http_status == 401
    assert await place.ask(newest)


async def test_keys_of_an_older_pepper_work_while_it_is_kept(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(office)
    key = await place.key()
    both = Place(office, peppers=Peppers((b"q" * 16, b"p" * 16)))
    assert await both.ask(key)
    without = Place(office, peppers=Peppers((b"q" * 16,)))
    assert (await without.refusal(bearer(key))).http_status == 401
    assert "pepper" in caplog.text
    assert key[16:] not in caplog.text


async def test_an_address_that_fails_too_often_is_told_so_and_harms_nobody(place: Place) -> None:
    key = await place.key()
    for _ in range(20):
        assert (await place.refusal({})).http_status == 401
    error = await place.refusal({})
    assert isinstance(error, OverQuota)
    assert error.retry_after_s == pytest.approx(3.0, abs=0.01)
    assert (await place.refusal({}, "192.0.2.2")).http_status == 401
    assert await place.ask(key)  # who has a key shares the address, not the blame
    place.clock.advance(3)
    assert (await place.refusal({})).http_status == 401
    assert place.failures == [(HERE, ""), ("192.0.2.2", "")]  # one audit entry a spell
    for host in range(21):
        error = await place.refusal({}, f"2001:db8::{host:x}")
    assert error.http_status == 429  # an IPv6 network counts as one


async def test_strangers_cannot_fill_the_audit_log(place: Place) -> None:
    await place.key()
    for number in range(200):
        assert (await place.refusal({}, f"192.0.2.{number}")).http_status == 401
    assert len(place.failures) == 60
    assert place.authentication.failures.total() == 200


async def test_the_platform_may_ask_itself(place: Place) -> None:
    await place.key()
    assert await place.ask("canary-x") is CANARY
    assert CANARY.scopes == {Scope.INFERENCE}
    assert canary_token(b"a" * 16) != canary_token(b"b" * 16)


async def test_limits_of_key_and_tenant_come_along(place: Place) -> None:
    key = await place.key(tenant="acme", limits=Limits(concurrency=1))
    await place.desk.set_tenant_limits(BY, "acme", Limits(requests_per_min=9))
    caller = await place.ask(key)
    assert caller.limits == Limits(concurrency=1)
    assert caller.tenant_limits == Limits(requests_per_min=9)


async def test_admin_scopes_imply_reading(place: Place) -> None:
    caller = await place.ask(await place.key(scopes=(Scope.ADMIN_WRITE,)))
    assert caller.scopes == {Scope.ADMIN_WRITE, Scope.ADMIN_READ, Scope.USAGE_READ}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
async def test_an_open_public_port_is_refused_with_the_way_out(tmp_path: Path, host: str) -> None:
    store = KeyFile(tmp_path)
    with pytest.raises(Misconfigured) as caught:
        await refuse_open_port(host, store, False)
    for words in (host, "diptych keys create", "--allow-anonymous"):
        assert words in caught.value.message
    await refuse_open_port(host, store, True)
    for loopback in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        await refuse_open_port(loopback, store, False)
    await store.close()


async def test_a_public_port_with_keys_is_fine(place: Place) -> None:
    await place.key()
    await refuse_open_port("0.0.0.0", place.store, False)
