"""Where requests come from."""

from typing import Any

import pytest

from diptych.gateway.tenancy.peers import Peers

PROXIES = ("10.0.0.0/8", "fd00::/8")


def scope(peer: str | None, *forwarded: str) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", text.encode()) for text in forwarded]
    return {"client": (peer, 1) if peer else None, "headers": headers}


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["1.1.1.1"], "192.0.2.1"),  # not a proxy of ours: its word is worth nothing
        ("10.0.0.1", ["203.0.113.5"], "203.0.113.5"),
        ("10.0.0.1", ["1.1.1.1, 203.0.113.5"], "203.0.113.5"),  # the left-most may be invented
        ("10.0.0.1", ["1.1.1.1", "203.0.113.5, 10.0.0.2"], "203.0.113.5"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        (None, [], "unknown"),
    ],
)
def test_the_nearest_address_that_is_no_proxy_counts(
    peer: str | None, forwarded: list[str], address: str
) -> None:
    assert Peers(PROXIES).address_of(scope(peer, *forwarded)) == address


def test_by_default_no_proxy_is_trusted() -> None:
    assert Peers().address_of(scope("127.0.0.1", "1.1.1.1")) == "127.0.0.1"
