"""The tables `[metrics]`, `[traces]` and `[log]`, beyond the types of their keys.

    tables ── check_observe ──> complaints ── fill_observe ──> variables and references resolved

Refuses to listen and to connect: whoever does finds out whether that works.

Rules upheld here:
1. Metrics are at a path of their own, and beyond loopback only for those who have a token.
2. A collector is at an address that can be connected to, and its headers are ones.
3. No complaint shows a value: by now it may be a secret.
"""

import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import msgspec.inspect

from trunkline.config.http_table import TAKEN, AddressError, split_address
from trunkline.config.model import HttpSettings
from trunkline.config.observe_settings import (
    LogSettings,
    MetricsSettings,
    MetricsTable,
    TracesSettings,
)
from trunkline.config.settle import each_text
from trunkline.config.substitute import Surroundings, substitute
from trunkline.documents.errors import Complain
from trunkline.documents.fit import fit
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, as_table

TABLES = {
    "metrics": msgspec.inspect.type_info(MetricsTable),
    "traces": msgspec.inspect.type_info(TracesSettings),
    "log": msgspec.inspect.type_info(LogSettings),
}

_PATHS = ("path", "sse_path", "ws_path")
_HTTP = HttpSettings()
_HEADER = re.compile(r"[\t\x20-\x7e]*")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f]")
_OURS = frozenset(("connection", "content-length", "content-type", "host", "transfer-encoding"))


class Observed(NamedTuple):
    """What the three tables say."""

    metrics: MetricsSettings
    traces: TracesSettings
    log: LogSettings


def check_observe(tree: Table, complain: Complain) -> Table:
    """Return the three tables, complaining about all that can be seen without the surroundings."""
    found: Table = {}
    for name, kind in TABLES.items():
        value = tree.get(name, {})
        fit(value, kind, (name,), complain)
        found[name] = as_table(value) or {}
    _check_metrics(found["metrics"], as_table(tree.get("http", {})) or {}, complain)
    return found


def _check_metrics(table: Table, http: Table, complain: Complain) -> None:
    listen, path = table.get("listen"), table.get("path")
    if isinstance(listen, str) and "token_env" not in table:
        try:
            split_address(listen)
        except AddressError as wrong:
            if "loopback" not in wrong.why:
                return  # its form was complained of
            why = "expected a loopback address: everybody who reaches it could read them"
            complain(("metrics", "listen"), why, "set token_env as well, or write 127.0.0.1")
    taken = (*TAKEN, *(http.get(key, getattr(_HTTP, key)) for key in _PATHS))
    if path in taken:
        complain(("metrics", "path"), "something else is there already", "choose another path")


def fill_observe(tables: Table, around: Surroundings, complain: Complain) -> Observed | None:
    """Return what the tables say, with all that they refer to; None where that is not good."""
    good = True

    def problem(path: KeyPath, why: str, fix: str) -> None:
        nonlocal good
        good = False
        complain(path, why, fix)

    metrics = dict(tables.get("metrics", {}))
    if isinstance(name := metrics.get("token_env"), str):
        metrics["token"] = _token(name, around, problem)
    traces = _traces(dict(tables.get("traces", {})), around, problem)
    if not good:
        return None
    try:
        return Observed(
            msgspec.convert(metrics, MetricsSettings),
            msgspec.convert(traces, TracesSettings),
            msgspec.convert(tables.get("log", {}), LogSettings),
        )
    except msgspec.ValidationError:
        return None  # which was complained of when the types were looked at


def _token(name: str, around: Surroundings, complain: Complain) -> str | None:
    value = around.environ.get(name)
    if not value:
        complain(("metrics", "token_env"), f"the variable {name} is not set", "set it")
    elif not _TOKEN.fullmatch(value):
        complain(("metrics", "token_env"), "it has characters that no token has", "use ASCII")
    return value


def _traces(table: Table, around: Surroundings, complain: Complain) -> Table:
    for key in ("endpoint", "headers"):
        if key in table:
            table[key] = _resolved(table[key], ("traces", key), around, complain)
    endpoint = table.get("endpoint")
    if isinstance(endpoint, str) and not _is_url(endpoint):
        why = "expected http:// or https:// and a host, without a name and a password in it"
        complain(("traces", "endpoint"), why, "write the whole address")
    headers = as_table(table.get("headers", {})) or {}
    for name, value in headers.items():
        if isinstance(value, str) and not _HEADER.fullmatch(value):
            why = "no HTTP header can carry it"
            complain(("traces", "headers", name), why, "use one line of plain ASCII")
        if name.lower() in _OURS:
            complain(("traces", "headers", name), "this one is ours to send", "leave it out")
    return table


def _resolved(value: Any, path: KeyPath, around: Surroundings, complain: Complain) -> Any:
    def change(text: str, at: KeyPath) -> str:
        return substitute(text, around, lambda why, fix: complain(at, why, fix))

    return each_text(value, path, change)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises where it is none
    except ValueError:
        return False
    is_web = parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc
    return is_web and _NOT_IN_URL.search(text) is None
