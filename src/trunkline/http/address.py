"""HTTP addresses: parse URLs, resolve hosts, classify IP addresses, and find those of clients.

Behind a trusted proxy, the address of a client is read from right to left: each trusted hop names
the one before it. What stands further left may be written by the client. It is never believed, but
`names_remote_hop` uses it to refuse.

Only http and https URLs are accepted. Credentials in a URL are rejected, since URLs end up in logs.
"""

import asyncio
import re
import socket
from collections.abc import Iterable, Mapping
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from urllib.parse import urlsplit

from msgspec import Struct

_DEFAULT_PORTS = {"http": 80, "https": 443}
_VISIBLE_ASCII = re.compile("[!-~]+")
_HOST_NAME = re.compile("[a-z0-9._-]+", re.IGNORECASE)

_NON_PUBLIC_V4 = [
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",  # "this network"; on Linux, this machine
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; also a cloud's metadata, 100.100.100.200
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's metadata, though in a public range
        "169.254.0.0/16",  # link-local; most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; also a cloud's metadata, 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
# Headers to which each proxy adds a value, perhaps in a line of its own.
FORWARDING_HEADERS = frozenset((b"forwarded", b"x-forwarded-for"))

# How many forwarding hops of one request are looked at.
_MAX_HOPS = 32

_GLOBAL_V6 = IPv6Network("2000::/3")
_NON_PUBLIC_V6 = [
    IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments: benchmarks, ORCHID …; Teredo is decoded first
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
]
_V4_COMPATIBLE = IPv6Network("::/96")
_NAT64 = IPv6Network("64:ff9b::/96")
# 64:ff9b:1::/48 is NAT64 for local use (RFC 8215): where the IPv4 address stands in it is decided
# locally. The whole block lies outside 2000::/3, so it counts as not public.


class HttpUrl(Struct, frozen=True):
    """A parsed http or https URL."""

    is_tls: bool
    host: str
    """A host name or an IP address, without brackets."""
    port: int
    target: str
    """The path and the query, as sent in the request line."""

    @property
    def name(self) -> str:
        """The host and the port, for messages."""
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        usual = self.port == _DEFAULT_PORTS["https" if self.is_tls else "http"]
        return _bracketed(self.host) if usual else self.name


def parse_http_url(url: str) -> HttpUrl:
    """Parse a URL; raises ValueError with a message that quotes nothing secret."""
    if not _VISIBLE_ASCII.fullmatch(url.encode("ascii", "replace").decode()):
        raise ValueError("expected a URL without white space and control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its message quotes the URL
        raise ValueError("expected a URL with a host and a port from 1 to 65535") from None
    if "@" in parts.netloc:
        raise ValueError("expected a URL without user name and password: put them into headers")
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("expected a URL that begins with 'http://' or 'https://'")
    if port == 0:
        raise ValueError("expected a port from 1 to 65535, got 0")
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return HttpUrl(
        is_tls=parts.scheme == "https",
        host=_normalize_host(parts.hostname or ""),
        port=port or _DEFAULT_PORTS[parts.scheme],
        target=check_target(target),
    )


def check_target(target: str) -> str:
    """Return `target` if it can be sent unchanged in a request line; raises ValueError."""
    if not target.startswith("/") or not _VISIBLE_ASCII.fullmatch(target) or "#" in target:
        raise ValueError("expected a percent-encoded path that begins with '/'")
    return target


async def resolve_host(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
    """Return the IP addresses of a host, preferred ones first; raises OSError."""
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public_address(address: str) -> bool:
    """Return whether an IP address, as `resolve_host` returns it, is on the public internet."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    embedded = _embedded_v4(found) if isinstance(found, IPv6Address) else [found]
    if embedded:
        return not any(one in net for one in embedded for net in _NON_PUBLIC_V4)
    return found in _GLOBAL_V6 and not any(found in net for net in _NON_PUBLIC_V6)


def is_loopback_address(address: str) -> bool:
    """Return whether a client address is on this machine; False for an unknown or invalid one."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def names_remote_hop(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a forwarding header names a client or proxy that is not on this machine.

    Both headers count, also those of clients: this may only take rights away. A hop without a valid
    address counts as remote.
    """
    hops = [
        _forwarded_client(hop) if name == b"forwarded" else hop
        for name in FORWARDING_HEADERS
        if name in headers
        for hop in headers[name].decode("latin-1").split(",")
    ]
    return not all(hop is not None and hop.is_loopback for hop in map(_parse_hop, hops))


def client_network(address: str) -> str:
    """Return the network that one customer has: the IPv4 address, or an IPv6 /64."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((int(parsed) >> 64 << 64, 64)))


class TrustedProxies:
    """The proxies whose forwarding headers are believed, as networks."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Parse the networks, such as `10.0.0.0/8` or `::1`; raises ValueError."""
        self._networks = [ip_network(network) for network in networks]

    def __contains__(self, address: str) -> bool:
        """Return whether the connection of this address is one of a proxy."""
        hop = _parse_hop(address) if self._networks else None
        return hop is not None and self._trusts(hop)

    def client_address(self, peer: str, headers: Mapping[bytes, bytes]) -> str:
        """Return the client's address for a request that came from `peer`.

        It is the last hop that no trusted proxy has. The result is "" if a proxy names no address,
        so that nothing the client wrote can make it a local or a known one.
        """
        if peer not in self:
            return peer
        found = peer
        for count, text in enumerate(reversed(_forwarding_hops(headers))):
            hop = _parse_hop(text) if count < _MAX_HOPS else None
            if hop is None:
                return ""
            found = str(hop)
            if not self._trusts(hop):
                break
        return found

    def _trusts(self, hop: IPv4Address | IPv6Address) -> bool:
        return any(hop in network for network in self._networks)


# Believes no forwarding header.
NO_PROXIES = TrustedProxies()


def _forwarding_hops(headers: Mapping[bytes, bytes]) -> list[str]:
    """Return the hops that the headers name, from the client to the last proxy but one.

    X-Forwarded-For comes first: proxies that set it often pass on a Forwarded of the client.
    """
    forwarded_for = headers.get(b"x-forwarded-for")
    if forwarded_for is not None:
        return forwarded_for.decode("latin-1").split(",")
    forwarded = headers.get(b"forwarded")
    if forwarded is None:
        return []
    return [_forwarded_client(element) for element in forwarded.decode("latin-1").split(",")]


def _forwarded_client(element: str) -> str:
    """Return the client in an element of a Forwarded header (RFC 7239), "" if it names none."""
    for pair in element.split(";"):
        name, _, value = pair.partition("=")
        if name.strip().lower() == "for":
            return value.strip().strip('"')
    return ""


def _parse_hop(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address with or without a port; None for a name, as in `for=unknown`."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _embedded_v4(address: IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses embedded in a tunnel or mapped address, which routers use."""
    if address.teredo:
        return list(address.teredo)
    if address.sixtofour:
        return [address.sixtofour]
    if address.ipv4_mapped:
        return [address.ipv4_mapped]
    if address in _V4_COMPATIBLE or address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFF_FFFF)]
    return []


def _normalize_host(host: str) -> str:
    try:
        if ":" in host and "%" not in host:
            return str(IPv6Address(host))
        found = host.encode("idna").decode()
    except ValueError:
        found = ""
    if not _HOST_NAME.fullmatch(found):
        raise ValueError(f"expected a URL with the name or the address of a host, got {host!r}")
    return found


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
