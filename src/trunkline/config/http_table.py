"""The `[http]` table, beyond the types of its keys: what must go together, and what must not.

    [http] ── check_http ──> complaints ── fill_http ──> files where they really are

Refuses to listen and to look into files: whether a port is free and a certificate is one, whoever
uses them finds out.

Rules upheld here:
1. Nobody listens to a network unless those who come are asked who they are: else it is loopback.
2. No two ways in have the same path.
3. A certificate and its key come together, and are files that can be read.
"""

import re
from typing import NoReturn

from trunkline.config.model import ADDRESS, HttpSettings
from trunkline.config.substitute import Surroundings, path_from
from trunkline.documents.errors import Complain, Report
from trunkline.documents.parse import Table

FILES = ("certificate", "key")
"""The keys that name files."""

TAKEN = ("/messages", "/health", "/healthz", "/ready", "/readyz")
"""Where something is already, whatever the configuration says."""

_PATHS = ("path", "sse_path", "ws_path")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1", re.IGNORECASE)
_DEFAULTS = HttpSettings()


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


def check_http(table: Table, report: Report, guarded: bool) -> None:
    """Complain about all that the types do not say; what breaks those is passed over."""
    listen, complain = table.get("listen"), report.error
    if isinstance(listen, str) and re.fullmatch(ADDRESS, listen):
        try:
            host, _ = split_address(listen, guarded)
        except AddressError as wrong:
            complain(("http", "listen"), wrong.why, wrong.fix)
        else:
            if not is_loopback(host):
                _note_exposure(table, report)
    for given, missing in (FILES, FILES[::-1]):
        if given in table and missing not in table:
            complain(("http", given), f"there is no {missing} beside it", "TLS needs both")
    _check_paths(table, complain)


def _note_exposure(table: Table, report: Report) -> None:
    """Say what somebody who listens to a network has probably forgotten."""
    if "certificate" not in table:
        fix = "set certificate and key, or have a proxy in front that does TLS"
        report.note(("http", "listen"), "tokens travel in the clear", fix)
    if not table.get("allowed_hosts"):
        fix = "list the names by which clients know it in allowed_hosts"
        report.note(("http", "listen"), "only loopback names are answered, others get 421", fix)


def _check_paths(table: Table, complain: Complain) -> None:
    seen: dict[object, str] = {}
    for key in _PATHS:
        path = table.get(key, getattr(_DEFAULTS, key))
        if not isinstance(path, str):
            continue
        if path in TAKEN:
            complain(("http", key), "something else is there already", "choose another path")
        other = seen.setdefault(path, key)
        if other != key:
            # The one that the file names can be mended there; the other may be a default.
            named = key if key in table else other
            both = other if named == key else key
            complain(("http", named), f"the same as {both}", "choose another path")


def fill_http(table: Table, around: Surroundings, complain: Complain) -> Table:
    """Return the table with its files as seen from anywhere, complaining of those not there."""
    table = dict(table)
    for key in FILES:
        if isinstance(name := table.get(key), str):
            path = path_from(name, around)
            table[key] = str(path)
            around.files.append(path)
            try:
                path.open("rb").close()
            except (OSError, ValueError) as why:  # ValueError: a NUL in its name
                reason = (getattr(why, "strerror", None) or "not a file name").lower()
                fix = "check its name, as seen from the config file, and its permissions"
                complain(("http", key), f"cannot be read: {reason}", fix)
    return table
