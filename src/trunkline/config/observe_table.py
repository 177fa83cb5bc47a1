"""The tables `[metrics]`, `[traces]` and `[log]`: what is to be seen of the gateway.

    tables ── check_metrics ──> complaints ── fill_… ──> variables and references resolved

Refuses to listen and to connect: whoever does finds out whether that works.

Rules upheld here:
1. Metrics are at a path of their own, and beyond loopback only for those who have a token.
2. A collector is at an address that can be connected to, and its headers are ones.
3. Neither a complaint nor printing a table shows a token, or what a header was given.
"""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from trunkline.config.addresses import AddressError, is_bare, is_loopback, split_address
from trunkline.config.forms import (
    ADDRESS,
    HEADER_VALUE,
    OUR_HEADERS,
    HeaderName,
    Share,
    Text,
    UrlPath,
    form,
)
from trunkline.config.http_table import PATHS, TAKEN, HttpSettings
from trunkline.config.substitute import each_text, substitute
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Complain, Report
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, table_in

_HTTP = HttpSettings()
_TOKEN = re.compile(r"[\x21-\x7e]+")
_OPEN = "everybody who reaches that address could read them"
_OPEN_FIX = "set token_env in [metrics], or listen for an address of their own"


class MetricsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where metrics are to be read; nowhere unless `listen` or `path` is set."""

    listen: Annotated[
        Annotated[str, form(ADDRESS, 'a host and a port, such as "127.0.0.1:9201"')] | None,
        Meta(description="An address of their own, with health beside them; else that of [http]."),
    ] = None
    path: Annotated[
        UrlPath | None,
        Meta(description="Where they are at that address; /metrics if only `listen` is set."),
    ] = None
    token_env: Annotated[
        Annotated[str, form("^[A-Za-z_][A-Za-z0-9_]*$", "the name of a variable, not its value")]
        | None,
        Meta(description="The variable whose value must come as a bearer token."),
    ] = None
    max_series: Annotated[
        int, Meta(ge=10, le=100_000, description="Series of calls; what comes later is `other`.")
    ] = 5000


class MetricsSettings(MetricsTable, frozen=True, kw_only=True):
    """Where metrics are to be read, and by whom."""

    token: str | None = None

    @property
    def place(self) -> str | None:
        """The path at which they are, None if they are nowhere."""
        return self.path or (None if self.listen is None else "/metrics")

    def check_host(self, host: str) -> None:
        """Raise AddressError if anybody could read them when the main address is at `host`."""
        if self.path and self.listen is None and self.token is None and not is_loopback(host):
            raise AddressError(f"[metrics] path = {self.path!r}: {_OPEN}", _OPEN_FIX)

    def __repr__(self) -> str:
        return f"MetricsSettings({self.listen!r}, {self.place!r}, …)"


class TracesSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where traces go; nowhere unless `endpoint` is set."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "url": 'write "endpoint"',
        "ratio": 'write "sample"',
        "sample_rate": 'write "sample"',
    }

    endpoint: Annotated[
        Text | None,
        Meta(description="Where an OTLP collector takes them over HTTP; /v1/traces unless it says"),
    ] = None
    sample: Annotated[
        Share,
        Meta(description="The share of calls that begin a trace, where the client has none."),
    ] = 0.1
    service_name: Annotated[
        Text, Meta(description="How the gateway is called in traces: `service.name`.")
    ] = "trunkline"
    headers: Annotated[
        dict[HeaderName, str],
        Meta(description="Headers to send to the collector; `${VAR}` stands for a variable."),
    ] = field(default_factory=dict[str, str])

    def __repr__(self) -> str:
        return f"TracesSettings({self.sample!r}, {self.service_name!r}, …)"


class LogSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written to stderr."""

    format: Annotated[
        Literal["auto", "json", "text"],
        Meta(description="For programs, for people, or whichever reads it."),
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error", "off"] | None,
        Meta(description="How grave it must be; info over HTTP and warning over stdio unless set."),
    ] = None


def check_metrics(tree: Table, report: Report) -> None:
    """Complain about all that can be seen without the surroundings."""
    table, http = table_in(tree, "metrics"), table_in(tree, "http")
    listen, path = table.get("listen"), table.get("path")
    if isinstance(path, str) and listen is None and "token_env" not in table:
        _check_main_address(http.get("listen"), report)
    if isinstance(listen, str) and "token_env" not in table:
        try:
            split_address(listen)
        except AddressError as wrong:
            if "loopback" not in wrong.why:
                return  # its form was complained of
            why = "expected a loopback address: everybody who reaches it could read them"
            report.error(("metrics", "listen"), why, "set token_env as well, or write 127.0.0.1")
    taken = (*TAKEN, *(http.get(key, getattr(_HTTP, key)) for key in PATHS))
    if path in taken:
        report.error(("metrics", "path"), "something else is there already", "choose another path")


def _check_main_address(listen: object, report: Report) -> None:
    """Complain if others than this machine reach the main address, and metrics with it."""
    try:
        if isinstance(listen, str) and not is_loopback(split_address(listen, guarded=True)[0]):
            report.error(("metrics", "path"), f"http.listen is not loopback's: {_OPEN}", _OPEN_FIX)
    except AddressError:
        return  # which is complained of where it stands


def fill_metrics(tree: Table, around: Surroundings, report: Report) -> Table:
    """Return the table with the token that its variable has."""
    table = table_in(tree, "metrics")
    name = table.get("token_env")
    return table | {"token": _token(name, around, report.error)} if isinstance(name, str) else table


def _token(name: str, around: Surroundings, complain: Complain) -> str | None:
    value = around.environ.get(name)
    if not value:
        complain(("metrics", "token_env"), f"the variable {name} is not set", "set it")
    elif not _TOKEN.fullmatch(value):
        complain(("metrics", "token_env"), "it has characters that no token has", "use ASCII")
    return value


def fill_traces(tree: Table, around: Surroundings, report: Report) -> Table:
    """Return the table with its references resolved, complaining of what cannot be used."""
    table, complain = dict(table_in(tree, "traces")), report.error

    def change(text: str, at: KeyPath) -> str:
        return substitute(text, around, lambda why, fix: complain(at, why, fix))

    for key in ("endpoint", "headers"):
        if key in table:
            table[key] = each_text(table[key], ("traces", key), change)
    endpoint = table.get("endpoint")
    if isinstance(endpoint, str) and not is_bare(endpoint):
        why = "expected http:// or https:// and a host, without a name and a password in it"
        complain(("traces", "endpoint"), why, "write the whole address")
    for name, value in table_in(table, "headers").items():
        if isinstance(value, str) and not HEADER_VALUE.fullmatch(value):
            why = "no HTTP header can carry it"
            complain(("traces", "headers", name), why, "use one line of plain ASCII")
        if name.lower() in OUR_HEADERS:
            complain(("traces", "headers", name), "this one is ours to send", "leave it out")
    return table
