"""The `[http]` table: how clients reach the gateway; what must go together, and what must not.

    [http] ── check_http ──> complaints ── fill_http ──> files where they really are

Refuses to listen and to look into files: whether a port is free and a certificate is one, whoever
uses them finds out.

Rules upheld here:
1. Nobody listens to a network unless those who come are asked who they are: else it is loopback.
2. No two ways in have the same path.
3. A certificate and its key come together, and are files that can be read.
"""

import re
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from trunkline.config.addresses import AddressError, is_loopback, split_address
from trunkline.config.auth_table import modes_of
from trunkline.config.forms import ADDRESS, DAY, MIB, Seconds, Text, UrlPath, form
from trunkline.config.paths import anchored, check_readable, path_from
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Complain, Report
from trunkline.documents.parse import Table, table_in

FILES = ("certificate", "key")
"""The keys that name files."""

PATHS = ("path", "sse_path", "ws_path")
"""The keys that say where the ways in are."""

TAKEN = ("/messages", "/health", "/healthz", "/ready", "/readyz")
"""Where something is already, whatever the configuration says."""

Address = Annotated[str, form(ADDRESS, 'a host and a port, such as "127.0.0.1:8080"')]
Host = Annotated[
    str,
    form(
        r"^(\*|(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?)$",
        'the name of a host, such as "gateway.example", or "*"',
    ),
]
Origin = Annotated[
    str,
    form(
        r"^(\*|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+)$",
        'an origin, such as "https://app.example", or "*"',
    ),
]


class HttpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How clients reach the gateway by HTTP; without `listen` they do not."""

    listen: Annotated[
        Address | None,
        Meta(description="Where to listen: an address and a port; without [auth], loopback's."),
    ] = None
    path: Annotated[UrlPath, Meta(description="Where MCP is, for clients of all revisions.")] = (
        "/mcp"
    )
    sse_path: Annotated[
        UrlPath, Meta(description="Where clients of HTTP+SSE (2024-11-05) begin.")
    ] = "/sse"
    ws_path: Annotated[UrlPath, Meta(description="Where clients come by WebSocket.")] = "/ws"
    allowed_hosts: Annotated[
        tuple[Host, ...],
        Meta(description="Names of the gateway in Host headers, beside those of loopback."),
    ] = ()
    allowed_origins: Annotated[
        tuple[Origin, ...],
        Meta(description="Pages that may call the gateway, beside those of loopback."),
    ] = ()
    certificate: Annotated[
        Text | None, Meta(description="A file with the certificate and its chain, for TLS.")
    ] = None
    key: Annotated[Text | None, Meta(description="A file with the certificate's key.")] = None
    head_timeout: Annotated[
        Seconds, Meta(description="Seconds until the head of a request must be there.")
    ] = 10.0
    body_timeout: Annotated[
        Seconds, Meta(description="Seconds until the body of a request must be there.")
    ] = 30.0
    write_timeout: Annotated[
        Seconds, Meta(description="Seconds that a client may go without reading.")
    ] = 30.0
    max_body: Annotated[
        int, Meta(ge=1024, le=1024 * MIB, description="The longest body of a request, in bytes.")
    ] = 4 * MIB
    max_connections: Annotated[int, Meta(ge=1, le=1_000_000, description="Connections in all.")] = (
        16384
    )
    max_connections_per_address: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Connections from one address.")
    ] = 8192
    max_in_flight: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls under way in all.")
    ] = 16384
    max_in_flight_per_principal: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls under way of one principal.")
    ] = 8192
    max_sessions: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Sessions of clients up to 2025-11-25.")
    ] = 10_000
    session_idle: Annotated[
        Seconds, Meta(description="Seconds without a message after which a session is over.")
    ] = 1800.0
    session_life: Annotated[
        Annotated[float, Meta(gt=0, le=366 * DAY)],
        Meta(description="Seconds after which a session is over, however busy it is."),
    ] = 86400.0
    keep_alive: Annotated[
        Seconds, Meta(description="Seconds that a stream may be silent before a comment is sent.")
    ] = 15.0


_DEFAULTS = HttpSettings()


def check_http(tree: Table, report: Report) -> None:
    """Complain about all that the types do not say; what breaks those is passed over."""
    table, complain = table_in(tree, "http"), report.error
    listen, guarded = table.get("listen"), bool(modes_of(table_in(tree, "auth")))
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
    for key in PATHS:
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


def fill_http(tree: Table, around: Surroundings, report: Report) -> Table:
    """Return the table with its files as seen from anywhere, complaining of those not there."""
    table = dict(table_in(tree, "http"))
    for key in FILES:
        if isinstance(name := table.get(key), str):
            path = path_from(name, around)
            table[key] = str(path)
            around.files.append(path)
            check_readable(path, ("http", key), report.error)
    return table


def portable_http(table: Table, folder: Path) -> Table:
    """Return the table as it can stand in any folder."""
    return anchored(table, FILES, folder)
