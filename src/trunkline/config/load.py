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

import msgspec
import msgspec.inspect
from msgspec import Struct

from trunkline.config.client_entries import client_servers
from trunkline.config.entry import Entry, check_entry, own_servers
from trunkline.config.model import Config, ConfigTable
from trunkline.config.ourselves import check_others
from trunkline.config.settle import fill, settings
from trunkline.config.surroundings import Surroundings
from trunkline.config.tables import TABLES
from trunkline.documents.errors import Report
from trunkline.documents.fit import fit
from trunkline.documents.parse import Table, as_table, parse_json, parse_toml, table_in
from trunkline.documents.reading import read_text

MAX_FILE = 1024 * 1024
"""How long a `trunkline.toml` may be, in bytes."""

MAX_CLIENT_FILE = 16 * 1024 * 1024
"""How long a client's file may be: Claude Code keeps its history beside its servers."""

_JSON = (".json", ".jsonc")
_WHOLE = msgspec.inspect.type_info(ConfigTable)


class Draft(Struct, frozen=True, kw_only=True):
    """What a file says, in our words, before references are resolved."""

    file: Path
    tables: Table = {}
    """All but the servers, by name."""
    entries: tuple[Entry, ...]
    inputs: dict[str, str | None] = {}
    is_client: bool
    notes: tuple[str, ...] = ()

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
    draft, report = _draft(path, "check the name, or leave it out to start without servers")
    around = draft.surroundings(environ, files)
    servers = [fill(entry, around, report.error) for entry in draft.entries]
    for entry, table in zip(draft.entries, servers, strict=True):
        check_others(entry, table, table_in(draft.tables, "http").get("listen"), report.error)
    filled = {
        name: ways.fill(draft.tables, around, report) for name, ways in TABLES.items() if ways.fill
    }
    report.check()
    more = {
        "servers": tuple(map(settings, draft.entries, servers)),
        "source": path,
        "notes": report.notes(),
    }
    return msgspec.convert(draft.tables | filled | more, Config)


def read(path: Path) -> Draft:
    """Return what the file at `path` says, references and all; raises ConfigErrors."""
    draft, report = _draft(path, "check the name")
    report.check()
    return msgspec.structs.replace(draft, notes=report.notes())


def _draft(path: Path, missing: str) -> tuple[Draft, Report]:
    """Read a file; `missing` is the remedy if none is there. Raises ConfigErrors."""
    text = _text(path, missing)
    is_client = _is_client(path, text)
    if is_client:
        parsed = parse_json(text, str(path))
        entries, inputs = client_servers(parsed.tree, parsed.report) if parsed.done else ([], {})
        draft = Draft(file=path, entries=tuple(entries), inputs=inputs, is_client=is_client)
    else:
        parsed = parse_toml(text, str(path))
        tree = as_table(parsed.tree) or {}
        entries = own_servers(tree.get("servers", {}), parsed.report.error)
        tables = {key: value for key, value in tree.items() if key != "servers"}
        fit(tables, _WHOLE, (), parsed.report.error)
        for ways in TABLES.values():
            if ways.check:
                ways.check(tree, parsed.report)
        draft = Draft(file=path, tables=tables, entries=tuple(entries), is_client=is_client)
    for entry in draft.entries:
        check_entry(entry, parsed.report.error)
    return draft, parsed.report


def _is_client(path: Path, text: str) -> bool:
    """Tell whether a file is a client's: by its name, or by how it begins."""
    suffix = path.suffix.lower()
    return suffix in _JSON or (suffix != ".toml" and text.lstrip().startswith("{"))


def _text(path: Path, missing: str) -> str:
    limit = MAX_FILE if path.suffix.lower() == ".toml" else MAX_CLIENT_FILE
    return read_text(path, limit, missing)
