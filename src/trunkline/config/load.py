"""From a file to a Config: our own TOML, or the JSON of any client, told apart by looking.

    file ──> text ──> tables ──> entries, checked ──> filled in ──> Config
     │        │         │           │                   │
     └────────┴─────────┴───────────┴───────────────────┴──> ConfigErrors, all of them at once

`read` stops before anything is filled in: a Draft still says `${TOKEN}`, and can be written down.

Rules upheld here:
1. Any bytes give a Config or ConfigErrors, and nothing else.
2. One mistake hides no other, unless the text could not be read at all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect
from msgspec import Struct, field

from trunkline.config.auth_table import check_auth, modes_of, settle_auth
from trunkline.config.client_entries import client_servers
from trunkline.config.entry import KNOWN, Entry, check_entry
from trunkline.config.http_table import check_http, fill_http
from trunkline.config.journal_table import JournalSettings, check_journal, fill_journal
from trunkline.config.kill_table import KillSettings, KillTable, check_kill, places
from trunkline.config.limits_table import LimitsSettings, check_limits
from trunkline.config.model import (
    Config,
    ConfigTable,
    GatewaySettings,
    HttpSettings,
    ServerName,
)
from trunkline.config.observe_table import check_observe, fill_observe
from trunkline.config.policy_table import PolicySettings, read_policy
from trunkline.config.settle import fill, settings
from trunkline.config.substitute import Surroundings
from trunkline.config.surface import check_surface
from trunkline.documents.errors import Report
from trunkline.documents.fit import fit, remedy_for
from trunkline.documents.parse import Table, as_table, parse_json, parse_toml
from trunkline.documents.reading import read_text

MAX_FILE = 1024 * 1024
"""How long a `trunkline.toml` may be, in bytes."""

MAX_CLIENT_FILE = 16 * 1024 * 1024
"""How long a client's file may be: Claude Code keeps its history beside its servers."""

_JSON = (".json", ".jsonc")
_GATEWAY = msgspec.inspect.type_info(GatewaySettings)
_HTTP = msgspec.inspect.type_info(HttpSettings)
_KILL = msgspec.inspect.type_info(KillTable)
_JOURNAL = msgspec.inspect.type_info(JournalSettings)
_LIMITS = msgspec.inspect.type_info(LimitsSettings)
_NAME = msgspec.inspect.type_info(ServerName)


class Draft(Struct, frozen=True):
    """What a file says, in our words, before references are resolved."""

    file: Path
    gateway: dict[str, Any]
    http: dict[str, Any]
    kill_switch: dict[str, Any]
    entries: tuple[Entry, ...]
    inputs: dict[str, str | None]
    is_client: bool
    policy: PolicySettings = field(default_factory=PolicySettings)
    notes: tuple[str, ...] = ()
    observe: dict[str, Any] = {}
    """The tables `[metrics]`, `[traces]` and `[log]`, by name."""
    auth: dict[str, Any] | None = None
    journal: dict[str, Any] = {}
    limits: dict[str, Any] | None = None

    def surroundings(
        self, environ: Mapping[str, str], files: list[Path] | None = None
    ) -> Surroundings:
        """Return what the references in this file are resolved against."""
        folder = self.file.absolute().parent
        files = [] if files is None else files
        return Surroundings(environ, folder, self.inputs, self.is_client, files)


def load(path: Path | None, environ: Mapping[str, str], files: list[Path] | None = None) -> Config:
    """Return what the file at `path` configures, or the defaults; raises ConfigErrors.

    `files` takes in what was read beside it, also if that was not good.
    """
    if path is None:
        return Config()
    draft, report = _draft(path)
    around = draft.surroundings(environ, files)
    tables = [fill(entry, around, report.error) for entry in draft.entries]
    http = fill_http(draft.http, around, report.error)
    auth = settle_auth(draft.auth, around, report.error)
    observed = fill_observe(draft.observe, around, report.error)
    journal = fill_journal(draft.journal, around, report.error)
    report.check()
    kill = draft.kill_switch
    kill_lines = places(kill, report.lines) if kill else {}
    return Config(
        gateway=msgspec.convert(draft.gateway, GatewaySettings),
        http=msgspec.convert(http, HttpSettings),
        kill_switch=msgspec.convert(kill | {"lines": kill_lines}, KillSettings),
        auth=auth,
        journal=msgspec.convert(journal, JournalSettings),
        limits=msgspec.convert(draft.limits, LimitsSettings | None),
        servers=tuple(map(settings, draft.entries, tables)),
        **({} if observed is None else observed._asdict()),
        policy=draft.policy,
        source=path,
        notes=report.notes(),
    )


def read(path: Path) -> Draft:
    """Return what the file at `path` says, references and all; raises ConfigErrors."""
    draft, report = _draft(path)
    report.check()
    return msgspec.structs.replace(draft, notes=report.notes())


def _draft(path: Path) -> tuple[Draft, Report]:
    text = _text(path)
    is_client = _is_client(path, text)
    if is_client:
        parsed = parse_json(text, str(path))
        entries, inputs = client_servers(parsed.tree, parsed.report) if parsed.done else ([], {})
        draft = Draft(path, {}, {}, {}, tuple(entries), inputs, is_client)
    else:
        parsed = parse_toml(text, str(path))
        tree = as_table(parsed.tree) or {}
        auth = check_auth(tree.get("auth"), parsed.report)
        observe = check_observe(tree, parsed.report.error)
        tables = _own_tables(tree, parsed.report)
        names = [entry.name for entry in tables[-1]]
        draft = Draft(
            path,
            *tables,
            {},
            is_client,
            policy=read_policy(tree, names, parsed.report),
            auth=auth,
            observe=observe,
            journal=_journal(tree, parsed.report),
        )
        draft = msgspec.structs.replace(draft, limits=_limits(tree, draft, parsed.report))
    for entry in draft.entries:
        check_entry(entry, parsed.report.error)
    return draft, parsed.report


def _own_tables(tree: Table, report: Report) -> tuple[Table, Table, Table, tuple[Entry, ...]]:
    """Return the tables of a `trunkline.toml` and its servers, checking what is around."""
    known = dict.fromkeys(ConfigTable.__struct_fields__)
    for key in tree:
        if key not in known:
            lost = key in KNOWN  # a key of a server, with the header of the server forgotten
            fix = "put it below [servers.NAME]" if lost else remedy_for(key, known)
            report.error((key,), "unknown key", fix)
    gateway, http = tree.get("gateway", {}), tree.get("http", {})
    kill = tree.get("kill_switch", {})
    fit(gateway, _GATEWAY, ("gateway",), report.error)
    fit(http, _HTTP, ("http",), report.error)
    fit(kill, _KILL, ("kill_switch",), report.error)
    guarded = bool(modes_of(as_table(tree.get("auth")) or {}))
    check_http(as_table(http) or {}, report, guarded)
    servers = as_table(tree.get("servers", {}))
    if servers is None:
        report.error(("servers",), "expected a table", "write [servers.NAME]")
    entries: list[Entry] = []
    for name, value in (servers or {}).items():
        root = ("servers", name)
        fit(name, _NAME, root, report.error)
        table = as_table(value)
        if table is None:
            report.error(root, "expected a table", "write [servers.NAME]")
        else:
            entries.append(Entry(name, table, root))
    check_surface(as_table(gateway) or {}, entries, report.error)
    check_kill(as_table(kill) or {}, list(servers or ()), report.error)
    return as_table(gateway) or {}, as_table(http) or {}, as_table(kill) or {}, tuple(entries)


def _journal(tree: Table, report: Report) -> Table:
    journal = tree.get("journal", {})
    fit(journal, _JOURNAL, ("journal",), report.error)
    check_journal(as_table(journal) or {}, report.error)
    return as_table(journal) or {}


def _limits(tree: Table, draft: Draft, report: Report) -> Table | None:
    """Return the table of limits, checking it; None if there is none."""
    if "limits" not in tree:
        return None
    limits = tree["limits"]
    fit(limits, _LIMITS, ("limits",), report.error)
    check_limits(as_table(limits) or {}, (entry.name for entry in draft.entries), report.error)
    return as_table(limits)


def _is_client(path: Path, text: str) -> bool:
    """Tell whether a file is a client's: by its name, or by how it begins."""
    suffix = path.suffix.lower()
    return suffix in _JSON or (suffix != ".toml" and text.lstrip().startswith("{"))


def _text(path: Path) -> str:
    """Return what is in the file; raises ConfigErrors."""
    limit = MAX_FILE if path.suffix.lower() == ".toml" else MAX_CLIENT_FILE
    return read_text(path, limit, "check the name, or leave it out to start without servers")
