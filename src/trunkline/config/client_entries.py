"""The servers of other programs' files: Claude Desktop and Code, Cursor, VS Code, Windsurf, Cline.

    {"mcpServers": {NAME: ENTRY, …}}                  most of them
    {"servers": {NAME: ENTRY, …}, "inputs": […]}      VS Code, or inside "mcp" of its settings

They work as they are. What we call differently is translated; what we do not know is noted and left
out, since some client does; only what cannot be understood at all is an error.

Rules upheld here:
1. Every server keeps its name if that is one here too; the others get a name of their own, and
   their old name as title. No two get the same.
2. A null is an absent key.
"""

import json
import re
from typing import Any, NamedTuple, cast

from trunkline.config.entry import BELONGS, KINDS, KNOWN, Entry, is_ours
from trunkline.config.server_table import MAX_NAME
from trunkline.documents.errors import Report, meant
from trunkline.documents.fit import SURROGATE
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, as_table

_ROOTS: tuple[tuple[str, ...], ...] = (("mcpServers",), ("servers",), ("mcp", "servers"))
_ALIASES = {"envFile": "env_file", "serverUrl": "url", "httpUrl": "url", "environment": "env"}
_APPROVAL = ("autoApprove", "alwaysAllow")
_CHOICES = (
    *("disabledTools", "enabledTools", "includeTools", "excludeTools"),
    *("disabled_tools", "enabled_tools", "allowedTools", "tools"),
)
"""Which tools a client lets be called; names that other clients give to the same thing."""
_KINDS_OF_TYPE = {
    "stdio": "command",
    "local": "command",
    "http": "url",
    "sse": "url",
    "streamable-http": "url",
    "streamableHttp": "url",
    "streamable_http": "url",
    "remote": "url",
}
_HANDLED = ("type", "enabled", *_APPROVAL)
_MOST_SECONDS, _MOST_MILLISECONDS = 3600, 86_400_000
"""Clients count in seconds or in milliseconds: none lets a call take longer than an hour."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class ClientServers(NamedTuple):
    """What a client's file says: its servers, and the inputs that VS Code would ask for."""

    entries: list[Entry]
    inputs: dict[str, str | None]


def client_servers(tree: object, report: Report) -> ClientServers:
    """Return the servers of a client's file, in its order."""
    top = as_table(tree)
    if top is None:
        report.error((), "expected an object", 'begin with { "mcpServers": { … } }')
        return ClientServers([], {})
    _note_projects(top, report)
    for root in _ROOTS:
        found: Any = top
        for key in root:
            found = (as_table(found) or {}).get(key)
        if found is not None:
            return ClientServers(_entries(found, root, report), _inputs(top, root, report))
    _complain_nothing(top, report)
    return ClientServers([], {})


def _note_projects(top: Table, report: Report) -> None:
    """Say of how many servers nobody hears: Claude Code keeps most of its own by folder."""
    projects = as_table(top.get("projects")) or {}
    each = [as_table((as_table(one) or {}).get("mcpServers")) or {} for one in projects.values()]
    if count := sum(map(len, each)):
        servers = "1 server" if count == 1 else f"{count} servers"
        fix = "add them with `claude mcp add --scope user`"
        report.note(("projects",), f"{servers} of single projects, ignored", fix)


def _complain_nothing(top: Table, report: Report) -> None:
    known = [root[0] for root in _ROOTS]
    for key in top:
        # Closer than usual: there is much else in these files, such as "disabledMcpServers".
        if key not in known and (other := meant(key, known[:2], likeness=0.85)):
            report.error((key,), "unknown key", f'did you mean "{other}"?')
            return
    report.note((), "no servers", 'they are expected under "mcpServers" or "servers"')


def _entries(found: object, root: tuple[str, ...], report: Report) -> list[Entry]:
    servers = as_table(found)
    if servers is None:
        report.error(root, "expected an object", "give it a member for each server")
        return []
    names = safe_names(list(servers))
    entries: list[Entry] = []
    for original, value in servers.items():
        place = (*root, original)
        table = as_table(value)
        if table is None:
            report.error(place, "expected an object", 'give it a "command" or a "url"')
            continue
        translation = _Translation(place, table, report)
        entry = Entry(names[original], translation.table, place, translation.moved)
        if entry.name != original:
            entry.table.setdefault("title", original)
        entries.append(entry)
    return entries


def safe_names(originals: list[str]) -> dict[str, str]:
    """Return a name for each: its own where that is possible, and always a different one."""
    names = {name: name for name in originals if _is_safe(name)}
    taken = set(names)
    for original in originals:
        if original not in names:
            plain = _UNSAFE.sub("_", original).strip("_")[:MAX_NAME] or "server"
            name, count = plain, 1
            while name in taken:
                count += 1
                name = f"{plain[: MAX_NAME - len(str(count)) - 1]}_{count}"
            names[original] = name
            taken.add(name)
    return names


def _is_safe(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and _UNSAFE.search(name) is None


def _inputs(top: Table, root: tuple[str, ...], report: Report) -> dict[str, str | None]:
    """Return the ids of VS Code's `inputs`, with their defaults."""
    place = (*root[:-1], "inputs")
    found = (top if len(root) == 1 else top[root[0]]).get("inputs")
    inputs: dict[str, str | None] = {}
    if found is not None and not isinstance(found, list):
        report.error(place, "expected a list", "put the inputs in brackets")
        return inputs
    for index, value in enumerate(cast("list[Any]", found or [])):
        entry: Any = as_table(value) or {}
        id, default = entry.get("id"), entry.get("default")
        if isinstance(id, str):
            is_text = isinstance(default, str) and not SURROGATE.search(default)
            inputs[id] = default if is_text else None
        else:
            report.note((*place, index), "an input without an id, ignored", "give it one")
    return inputs


class _Translation:
    """Says in our words what one entry says, and remembers what stood where."""

    def __init__(self, place: KeyPath, entry: Table, report: Report) -> None:
        self.table: Table = {}
        self.moved: dict[KeyPath, KeyPath] = {}
        self._place = place
        self._report = report
        entry = {key: value for key, value in entry.items() if value is not None}
        for key, value in entry.items():
            self._copy(key, value)
        self._split_command()
        for key in ("env", "headers"):
            self._stringify(key)
        self._drop_our_headers()
        self._scale_timeout()
        self._choose_kind(entry.get("type"))
        if entry.get("enabled") is False:
            self.table["disabled"] = True
        self._drop_strangers()

    def _copy(self, key: str, value: object) -> None:
        ours = _ALIASES.get(key, key)
        if key in _APPROVAL:
            self._note(key, "ignored", "approving calls is the client's affair")
        elif key in _CHOICES:
            if value:
                fix = "all tools are offered; say in [[policy]] which may be called"
                self._note(key, "ignored", fix)
        elif key == "oauth":
            # Theirs is a person's login, in words of their own; ours is the gateway's.
            self._note(key, "ignored", "write [servers.NAME.oauth] in a trunkline.toml")
        elif key in _HANDLED:
            return
        elif ours not in KNOWN:
            other = meant(key, KNOWN)
            self._note(key, "unknown key, ignored", f'did you mean "{other}"?' if other else "")
        elif ours in self.table:
            self._note(key, f"ignored beside {self._name(ours)}", "keep one of the two")
        else:
            self.table[ours] = value
            if ours != key:
                self.moved[(ours,)] = (key,)

    def _split_command(self) -> None:
        """Take a list for a command with its arguments."""
        command, args = self.table.get("command"), self.table.get("args", [])
        if not isinstance(command, list) or not command or not isinstance(args, list):
            return
        first, *more = cast("list[Any]", command)
        self.table |= {"command": first, "args": [*more, *cast("list[Any]", args)]}
        self.moved[("command",)] = ("command", 0)
        for index in range(len(self.table["args"])):
            is_more = index < len(more)
            place = ("command", index + 1) if is_more else ("args", index - len(more))
            self.moved[("args", index)] = place

    def _stringify(self, key: str) -> None:
        """Write numbers and booleans as text: people leave the quotes out, and clients let them."""
        table = as_table(self.table.get(key))
        if table is not None:
            self.table[key] = {
                name: json.dumps(value) if isinstance(value, bool | int | float) else value
                for name, value in table.items()
                if value is not None
            }

    def _drop_our_headers(self) -> None:
        """Leave out headers that every client sends itself; some people write them down."""
        headers = as_table(self.table.get("headers")) or {}
        for name in filter(is_ours, list(headers)):
            del headers[name]
            self._report.note((*self._place, "headers", name), "ignored", "it is sent anyway")

    def _scale_timeout(self) -> None:
        timeout = self.table.get("timeout")
        is_number = isinstance(timeout, int | float)
        if is_number and _MOST_SECONDS < timeout <= _MOST_MILLISECONDS:
            self.table["timeout"] = timeout / 1000
            self._note("timeout", "read as milliseconds", "ours are seconds")

    def _choose_kind(self, type_: object) -> None:
        """Let `type` decide where an entry has both a command and a url."""
        if type_ is None:
            return
        kind = _KINDS_OF_TYPE.get(type_) if isinstance(type_, str) else None
        if kind is None:
            words = ", ".join(f'"{name}"' for name in _KINDS_OF_TYPE)
            self._report.error((*self._place, "type"), "unknown type", f"known are {words}")
            return
        for other in KINDS:
            if other != kind and kind in self.table and other in self.table:
                self._note(other, "ignored because of the type", "leave it out")
                del self.table[other]

    def _drop_strangers(self) -> None:
        """Leave out what belongs to another kind of server; other programs ignore it as well."""
        given = [kind for kind in KINDS if kind in self.table]
        for key, owner in BELONGS.items():
            is_strange = given and owner not in given
            if is_strange and self.table.pop(key, None):
                self._note(key, "ignored", f"it belongs to a server with a {owner}")

    def _name(self, ours: str) -> str:
        return str(self.moved.get((ours,), (ours,))[0])

    def _note(self, key: str, why: str, fix: str) -> None:
        path = self.moved.get((key,), (key,))
        self._report.note((*self._place, *path), why, fix)
