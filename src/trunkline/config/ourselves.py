"""Ourselves: tells a url that this very gateway would answer from one of another server.

    url ──┐
    listen ┴─> same port, and a host that means the same ──> a complaint, or nothing

Refuses to look anything up: what another name of this machine means, or what a proxy in front of
it passes on, it does not know.

Rule upheld here: no gateway is put behind itself, for its tools would be its own, without end.
"""

from ipaddress import ip_address

from trunkline.config.addresses import AddressError, is_loopback, split_address, split_url
from trunkline.config.entry import Entry
from trunkline.config.model import Config
from trunkline.documents.errors import Complain, ConfigError, ConfigErrors, key_text
from trunkline.documents.parse import Table

WHY = "it is where this gateway itself listens"
FIX = "leave the server out, or listen elsewhere"

_PORTS = {"http": 80, "https": 443}
_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
"""What `localhost` may mean."""

_ANYWHERE = frozenset(("0.0.0.0", "::"))  # noqa: S104  nobody listens there because of this


def check_others(entry: Entry, table: Table, listen: object, complain: Complain) -> None:
    """Complain if a server, its table filled, is whoever listens at `listen`; that may be wrong."""
    if table.get("disabled") is not True and is_ourselves(table.get("url"), listen):
        entry.complain_to(complain)(("url",), WHY, FIX)


def expect_others(config: Config, listen: str | None) -> None:
    """Raise ConfigErrors if a server is this gateway, once it listens at `listen`."""
    urls = {server.name: server.url for server in config.servers if not server.disabled}
    ours = [name for name, url in urls.items() if is_ourselves(url, listen)]
    if ours:
        file, why = str(config.source or ""), f"{WHY}, {listen}"
        keys = [key_text(("servers", name, "url")) for name in ours]
        raise ConfigErrors(ConfigError(file, None, key, why, FIX) for key in keys)


def is_ourselves(url: object, listen: object) -> bool:
    """Tell whether a url leads to whoever listens at HOST:PORT; what is neither leads nowhere."""
    parts = split_url(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in _PORTS or not isinstance(listen, str):
        return False
    try:
        host, port = split_address(listen, guarded=True)
    except AddressError:
        return False
    theirs = _PORTS[parts.scheme] if parts.port is None else parts.port
    return port == theirs != 0 and _mean_the_same({_plain(parts.hostname or ""), _plain(host)})


def _mean_the_same(hosts: set[str]) -> bool:
    if len(hosts) == 1 or ("localhost" in hosts and hosts <= _LOCAL):
        return True
    return not hosts.isdisjoint(_ANYWHERE) and all(map(is_loopback, hosts - _ANYWHERE))


def _plain(host: str) -> str:
    """Return the one spelling of a host: there are many for some addresses."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")
