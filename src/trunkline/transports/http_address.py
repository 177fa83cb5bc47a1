"""HTTP addresses: what a URL names, where that is, and whether it is on the public internet.

Refuses credentials in a URL, since URLs end up in logs, and all schemes but http and https.
"""

import asyncio
import re
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from msgspec import Struct

_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile("[!-~]+")
_HOST = re.compile("[a-z0-9._-]+", re.IGNORECASE)

_NOT_PUBLIC = [
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
        "192.88.99.0/24",  # 6to4 relays, given up
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
_GLOBAL = IPv6Network("2000::/3")
_NOT_GLOBAL = [
    IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments: benchmarks, ORCHID …; Teredo is judged before
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
]
_COMPATIBLE = IPv6Network("::/96")
_NAT64 = IPv6Network("64:ff9b::/96")
# 64:ff9b:1::/48 is NAT64 too, for local use: where in it the IPv4 address stands is decided locally
# and cannot be known here. It lies outside 2000::/3, so it is refused as a whole.


class Origin(Struct, frozen=True):
    """What an http(s) URL names."""

    secure: bool
    host: str
    """A name or an IP address, without brackets."""
    port: int
    target: str
    """The path and the query, as they are sent."""

    @property
    def name(self) -> str:
        """The host and the port, for people."""
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def authority(self) -> str:
        """What the Host header says."""
        usual = self.port == _PORTS["https" if self.secure else "http"]
        return _bracketed(self.host) if usual else self.name


def parse_origin(url: str) -> Origin:
    """Return what a URL names, or raise ValueError, which quotes nothing that may be secret."""
    if not _VISIBLE.fullmatch(url.encode("ascii", "replace").decode()):
        raise ValueError("expected a URL without white space and control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # which quotes
        raise ValueError("expected a URL with a host and a port from 1 to 65535") from None
    if "@" in parts.netloc:
        raise ValueError("expected a URL without user name and password: put them into headers")
    if parts.scheme not in _PORTS:
        raise ValueError("expected a URL that begins with 'http://' or 'https://'")
    if port == 0:
        raise ValueError("expected a port from 1 to 65535, got 0")
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return Origin(
        secure=parts.scheme == "https",
        host=_host(parts.hostname or ""),
        port=port or _PORTS[parts.scheme],
        target=checked_target(target),
    )


def checked_target(target: str) -> str:
    """Return a path with its query if it can be sent as it is, or raise ValueError."""
    if not target.startswith("/") or not _VISIBLE.fullmatch(target) or "#" in target:
        raise ValueError("expected a percent-encoded path that begins with '/'")
    return target


async def resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
    """Return the IP addresses of a host, best first; raises OSError."""
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: str) -> bool:
    """Tell whether an IP address, as `resolve` returns it, is one of the public internet."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    embedded = _embedded(found) if isinstance(found, IPv6Address) else [found]
    if embedded:
        return not any(one in net for one in embedded for net in _NOT_PUBLIC)
    return found in _GLOBAL and not any(found in net for net in _NOT_GLOBAL)


def _embedded(address: IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses by which packets to `address` are sent on, if there are any."""
    if address.teredo:
        return list(address.teredo)
    if address.sixtofour:
        return [address.sixtofour]
    if address.ipv4_mapped:
        return [address.ipv4_mapped]
    if address in _COMPATIBLE or address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFF_FFFF)]
    return []


def _host(host: str) -> str:
    try:
        if ":" in host and "%" not in host:
            return str(IPv6Address(host))
        found = host.encode("idna").decode()
    except ValueError:
        found = ""
    if not _HOST.fullmatch(found):
        raise ValueError(f"expected a URL with the name or the address of a host, got {host!r}")
    return found


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
