"""One server as a file describes it: a table in our own words, and where each part of it stood.

    [servers.fs] in trunkline.toml ─────────────┐
    {"mcpServers": {"fs": …}} ── client_entries ┴─> Entry ── check_entry ── settle ─> ServerSettings

Rules upheld here:
1. A server is exactly one of a command, a url and a builtin, and has no keys of another kind.
2. A complaint names the key as the file has it, whatever we call it.
3. No header that the gateway sends is sent twice: servers refuse that, or go by either.
"""

from typing import Any

import msgspec.inspect
from msgspec import Struct, field

from trunkline.config.forms import OUR_HEADERS
from trunkline.config.oauth_table import check_oauth
from trunkline.config.server_table import ServerName, ServerTable
from trunkline.documents.errors import Complain, meant
from trunkline.documents.fit import fit
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import as_table

KINDS = ("command", "url", "builtin")
BELONGS = {"args": "command", "env": "command", "env_file": "command", "cwd": "command"} | {
    "headers": "url",
    "oauth": "url",
}
"""Keys that mean something only beside another."""

BUILTIN = dict.fromkeys(
    ("registry", "curator_key", "scoring", "threshold", "fuzzy_weight", "keyword_weight"), "sources"
) | {"operator_tools": "operator"}
"""Keys that mean something only to one of the servers that are part of Trunkline."""

_MCP_HEADERS = frozenset(
    (
        "accept",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
    )
)
_TYPE = msgspec.inspect.type_info(ServerTable)
_NAME = msgspec.inspect.type_info(ServerName)
KNOWN = tuple(ServerTable.__struct_fields__)


class Entry(Struct, frozen=True):
    """A server's table, its place in the file, and what stood elsewhere or under another name."""

    name: str
    table: dict[str, Any]
    root: KeyPath
    moved: dict[KeyPath, KeyPath] = field(default_factory=dict[KeyPath, KeyPath])

    def place(self, path: KeyPath) -> KeyPath:
        """Return where in the file that which is at `path` in the table stood."""
        for length in range(len(path), 0, -1):
            if (elsewhere := self.moved.get(path[:length])) is not None:
                return (*self.root, *elsewhere, *path[length:])
        return (*self.root, *path)

    def complain_to(self, complain: Complain) -> Complain:
        """Return a complaint desk for paths in the table."""
        return lambda path, why, fix: complain(self.place(path), why, fix)


_NO_TABLE = ("expected a table", "write [servers.NAME]")
_NOTHING = (
    "no command and no url",
    'add command = "…" for a program, or url = "https://…" for a server elsewhere',
)


def own_servers(value: object, complain: Complain) -> list[Entry]:
    """Return the servers of a `trunkline.toml`, complaining of their names and of what is none."""
    servers = as_table(value)
    if servers is None:
        complain(("servers",), *_NO_TABLE)
    entries: list[Entry] = []
    for name, inside in (servers or {}).items():
        root = ("servers", name)
        fit(name, _NAME, root, complain)
        table = as_table(inside)
        if table is None:
            complain(root, *_NO_TABLE)
        else:
            entries.append(Entry(name, table, root))
    return entries


def check_entry(entry: Entry, complain: Complain) -> None:
    """Complain about all that is wrong with a table before anything is substituted."""
    complain = entry.complain_to(complain)
    table = entry.table
    fit(table, _TYPE, (), complain)
    given = [kind for kind in KINDS if kind in table]
    # Who misspelt "command" hears of that; that there is none would be the same thing again.
    if not given and not any(meant(key, KINDS) for key in table if key not in KNOWN):
        complain((), *_NOTHING)
    for other in given[1:]:
        why = f"{given[0]} and {other} are both given"
        complain((other,), why, "keep one: they are different kinds of server")
    for key, owner in BELONGS.items():
        if key in table and given and owner not in given:
            complain((key,), f"belongs to a server with a {owner}", "leave it out")
    for key, owner in BUILTIN.items():
        if key in table and given and table.get("builtin") != owner:
            complain((key,), f'belongs to a server with builtin = "{owner}"', "leave it out")
    _check_headers(table.get("headers"), complain)
    check_oauth(table, complain)


def is_ours(header: str) -> bool:
    """Tell whether the gateway sends a header of this name itself."""
    name = header.lower()
    return name in OUR_HEADERS or name in _MCP_HEADERS or name.startswith("mcp-param-")


def _check_headers(headers: object, complain: Complain) -> None:
    """Complain about headers that are ours, or differ in case alone: one of them would be sent."""
    seen: dict[str, str] = {}
    for name in as_table(headers) or ():
        if is_ours(name):
            complain(("headers", name), "this one is ours to send", "leave it out")
        first = seen.setdefault(name.lower(), name)
        if first != name:
            complain(("headers", name), "given twice, in another spelling", "keep one of the two")
