"""The `[metrics]`, `[traces]` and `[log]` tables.

    tables ── check_metrics ──> errors ── resolve_… ──> variables and references resolved

Nothing here listens or connects.

Invariants:
1. Metrics have a path of their own; beyond loopback they need a token.
2. A collector has a valid URL and valid headers.
3. Errors and reprs show no token and no header value.
"""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from trunkline.config.addresses import (
    ADDRESS_PATTERN,
    AddressError,
    is_http_url_without_user,
    is_loopback,
    split_address,
)
from trunkline.config.gateway_tables import HTTP_PATH_KEYS, RESERVED_PATHS, HttpSettings
from trunkline.config.references import ResolveContext, map_text, resolve_references
from trunkline.documents.errors import AddError, ErrorCollector, KeyPath
from trunkline.documents.formats import (
    HEADER_VALUE_PATTERN,
    TRANSPORT_HEADERS,
    Fraction,
    HeaderName,
    NonBlankText,
    UrlPath,
    text_format,
)
from trunkline.documents.parser import Table, get_table

_HTTP_DEFAULT_SETTINGS = HttpSettings()
# A bearer token is one word in a header (RFC 6750, 2.1).
_TOKEN_PATTERN = re.compile(r"[\x21-\x7e]+")
_EXPOSED = "everyone who reaches that address could read them"
_EXPOSED_FIX = "set token_env in [metrics], or set listen in [metrics]"


class MetricsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where metrics are served; nowhere unless `listen` or `path` is set."""

    listen: Annotated[
        Annotated[str, text_format(ADDRESS_PATTERN, 'a host and a port, such as "127.0.0.1:9201"')]
        | None,
        Meta(description="A separate address for metrics and health. Default: none."),
    ] = None
    path: Annotated[
        UrlPath | None,
        Meta(description="The path of the metrics. Default: /metrics with listen, else none."),
    ] = None
    token_env: Annotated[
        Annotated[
            str, text_format("^[A-Za-z_][A-Za-z0-9_]*$", "the name of a variable, not its value")
        ]
        | None,
        Meta(description="The environment variable with the token of the reader. Default: none."),
    ] = None
    max_series: Annotated[
        int,
        Meta(
            ge=10, le=100_000, description=("Series of calls; further ones are counted as `other`.")
        ),
    ] = 5000


class MetricsSettings(MetricsTable, frozen=True, kw_only=True):
    """Where metrics are served, with the token."""

    token: str | None = None

    @property
    def url_path(self) -> str | None:
        """The path of the metrics, None if they are off."""
        return self.path or (None if self.listen is None else "/metrics")

    def check_host(self, host: str) -> None:
        """Raise AddressError if metrics would be public on the main address at `host`."""
        if self.path and self.listen is None and self.token is None and not is_loopback(host):
            raise AddressError(f"[metrics] path = {self.path!r}: {_EXPOSED}", _EXPOSED_FIX)

    def __repr__(self) -> str:
        return f"MetricsSettings({self.listen!r}, {self.url_path!r}, …)"


class TracesSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where traces are sent; tracing is off without `endpoint`."""

    KEY_FIXES: ClassVar[Mapping[str, str]] = {
        "url": 'write "endpoint"',
        "ratio": 'write "sample"',
        "sample_rate": 'write "sample"',
    }

    endpoint: Annotated[
        NonBlankText | None,
        Meta(description="The OTLP/HTTP endpoint of a collector. Default: none, tracing is off."),
    ] = None
    sample: Annotated[
        Fraction,
        Meta(description="The share of calls that start a trace, unless the client decides."),
    ] = 0.1
    service_name: Annotated[NonBlankText, Meta(description="The `service.name` of the spans.")] = (
        "trunkline"
    )
    headers: Annotated[
        dict[HeaderName, str],
        Meta(description="Headers for the collector; `${VAR}` is resolved."),
    ] = field(default_factory=dict[str, str])

    def __repr__(self) -> str:
        return f"TracesSettings({self.sample!r}, {self.service_name!r}, …)"


class LogSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log on stderr."""

    format: Annotated[
        Literal["auto", "json", "text"],
        Meta(description="JSON, text, or by where stderr goes."),
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error", "off"] | None,
        Meta(
            description=(
                "The lowest level that is logged. Default: info over HTTP, warning over stdio only."
            )
        ),
    ] = None


def check_metrics(tree: Table, report: ErrorCollector) -> None:
    """Report errors that need no environment."""
    table, http = get_table(tree, "metrics"), get_table(tree, "http")
    listen, path = table.get("listen"), table.get("path")
    if isinstance(path, str) and listen is None and "token_env" not in table:
        _check_main_address(http.get("listen"), report)
    if isinstance(listen, str) and "token_env" not in table:
        try:
            split_address(listen)
        except AddressError as error:
            if "loopback" in error.reason:  # otherwise its format was reported
                reason = "expected a loopback address: everyone who reaches it could read them"
                report.add_error(
                    ("metrics", "listen"), reason, "set token_env as well, or write 127.0.0.1"
                )
    reserved = (
        *RESERVED_PATHS,
        *(http.get(key, getattr(_HTTP_DEFAULT_SETTINGS, key)) for key in HTTP_PATH_KEYS),
    )
    if path in reserved:
        report.add_error(("metrics", "path"), "this path is reserved", "choose another path")


def _check_main_address(listen: object, report: ErrorCollector) -> None:
    """Report metrics without a token on a main address beyond loopback."""
    try:
        if isinstance(listen, str) and not is_loopback(
            split_address(listen, requires_auth=True)[0]
        ):
            report.add_error(
                ("metrics", "path"),
                f"http.listen is not a loopback address: {_EXPOSED}",
                _EXPOSED_FIX,
            )
    except AddressError:
        return  # reported for http.listen


def resolve_metrics(tree: Table, context: ResolveContext, report: ErrorCollector) -> Table:
    """Return the table with the token from its variable."""
    table = get_table(tree, "metrics")
    name = table.get("token_env")
    return (
        table | {"token": _read_token(name, context, report.add_error)}
        if isinstance(name, str)
        else table
    )


def _read_token(name: str, context: ResolveContext, add_error: AddError) -> str | None:
    value = context.environ.get(name)
    if not value:
        add_error(("metrics", "token_env"), f"the variable {name} is not set", "set it")
    elif not _TOKEN_PATTERN.fullmatch(value):
        add_error(("metrics", "token_env"), "it contains invalid characters", "use visible ASCII")
    return value


def resolve_traces(tree: Table, context: ResolveContext, report: ErrorCollector) -> Table:
    """Return the table with references resolved; report unusable values."""
    table, add_error = dict(get_table(tree, "traces")), report.add_error

    def change(text: str, at: KeyPath) -> str:
        return resolve_references(text, context, lambda reason, fix: add_error(at, reason, fix))

    for key in ("endpoint", "headers"):
        if key in table:
            table[key] = map_text(table[key], ("traces", key), change)
    endpoint = table.get("endpoint")
    if isinstance(endpoint, str) and not is_http_url_without_user(endpoint):
        reason = "expected http:// or https:// and a host, without a name and a password in it"
        add_error(("traces", "endpoint"), reason, "write the whole address")
    for name, value in get_table(table, "headers").items():
        # Checked after resolution: a line end in a variable would add a header.
        if isinstance(value, str) and not HEADER_VALUE_PATTERN.fullmatch(value):
            reason = "invalid header value"
            add_error(("traces", "headers", name), reason, "use one line of plain ASCII")
        if name.lower() in TRANSPORT_HEADERS:
            add_error(
                ("traces", "headers", name), "the gateway sends this header itself", "leave it out"
            )
    return table
