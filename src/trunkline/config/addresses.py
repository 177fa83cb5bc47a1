"""Addresses: HOST:PORT where we listen, and urls that we call.

Refuses to connect: whether anybody answers there, whoever uses an address finds out.

Rules upheld here:
1. Nobody listens beyond loopback unless those who come are asked who they are.
2. What leaves this machine to be kept secret, or must not be changed on its way, is encrypted.
"""

import re
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

from trunkline.config.forms import ADDRESS

UNSENT = "a name or a password is in it, which is never sent"
"""What is wrong with a url that has."""

_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f]")


class AddressError(ValueError):
    """An address at which nobody can, or may, listen: why, and what to write instead."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(f"{why}; {fix}")
        self.why, self.fix = why, fix


def split_address(address: str, guarded: bool = False) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT.

    Raises AddressError for what is none, and, unless those who come are asked who they are, for
    what is not loopback's.
    """
    if not re.fullmatch(ADDRESS, address):
        _refuse("expected a host and a port", "write 127.0.0.1:8080, or [::1]:8080")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if int(port) > 65535:
        _refuse("expected a port of at most 65535", "choose another; 0 is any that is free")
    if not guarded and not is_loopback(host):
        _refuse(
            "expected a loopback address: nobody is asked who they are, so that whoever "
            "reaches the gateway may call everything",
            "write 127.0.0.1, localhost or [::1], or say in [auth] who is let in",
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, as seen from itself."""
    return _LOOPBACK.fullmatch(host) is not None


def _refuse(why: str, fix: str) -> NoReturn:
    raise AddressError(why, fix)


def split_url(text: str) -> SplitResult | None:
    """Return the parts of a url; None for what cannot be taken apart."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises where it is none
    except ValueError:
        return None
    return parts


def is_web(text: str) -> bool:
    """Tell whether a text is http:// or https:// and a host."""
    parts = split_url(text)
    is_url = parts is not None and parts.scheme in {"http", "https"} and bool(parts.hostname)
    return is_url and _NOT_IN_URL.search(text) is None


def is_bare(text: str) -> bool:
    """Tell whether a text is http:// or https:// and a host, without a name and a password."""
    return is_web(text) and "@" not in urlsplit(text).netloc


def names_user(url: object) -> bool:
    """Tell whether a url has a name or a password in it."""
    return isinstance(url, str) and is_web(url) and not is_bare(url)


def is_safe(text: str) -> bool:
    """Tell whether nobody on the way can read or change what is sent: TLS, or this machine."""
    parts = split_url(text)
    return parts is not None and (parts.scheme == "https" or is_loopback(parts.hostname or ""))
