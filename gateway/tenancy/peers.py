"""Where a request comes from. A proxy's word counts only if we were told to trust the proxy."""

import ipaddress
from collections.abc import MutableMapping
from typing import Any

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
UNKNOWN = "unknown"


class Peers:
    """Knows the proxies in front of us."""

    def __init__(self, trusted: tuple[str, ...] = ()) -> None:
        self._trusted = tuple(ipaddress.ip_network(network) for network in trusted)

    def address_of(self, scope: MutableMapping[str, Any]) -> str:
        """The nearest address that is not a trusted proxy."""
        client = scope.get("client")
        nearest = str(client[0]) if client else UNKNOWN
        if not self._trusts(nearest):
            return nearest
        said = [v.decode("latin-1") for name, v in scope["headers"] if name == b"x-forwarded-for"]
        for text in reversed(",".join(said).split(",")):
            address = _parse(text.strip())
            if address is None:
                break  # not an address: nobody we trust wrote that
            nearest = str(address)
            if not self._trusts(nearest):
                break
        return nearest

    def _trusts(self, text: str) -> bool:
        address = _parse(text)
        return address is not None and any(address in network for network in self._trusted)


def network_of(address: str) -> str:
    """What one customer owns: an IPv4 address, or an IPv6 /64."""
    parsed = _parse(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound there."""
    if host == "localhost":
        return True
    address = _parse(host)
    return address is not None and address.is_loopback


def _parse(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address
