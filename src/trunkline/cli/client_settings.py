"""The settings file of a client: finds old entries, and puts the entry of the gateway into it.

    settings ──> entries like a server of the gateway ──> old entries, which would run twice
    text ──> add or update `trunkline`, remove old entries ──> backup ──> replace the file

`config.edit_json` and `config.edit_toml` edit the text; `client_config` prints what is done.

Invariants:
1. A file that is not valid is not touched, and no file is left half written.
2. The old file is in a backup before it is replaced. Only its owner may read a backup, or a new
   file.
3. A token that the entry has already stays; no other one is written.
4. A second run changes nothing.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from trunkline.cli.client_apps import ENTRY_NAME, PASTED_TOKEN, ClientApp
from trunkline.config import RawConfig, is_own_url
from trunkline.config.auth_table import TOKEN_VARIABLE
from trunkline.config.client_files import parse_client_servers
from trunkline.config.edit_json import append_item, remove_member, set_member
from trunkline.config.edit_toml import add_server, remove_server
from trunkline.config.load import MAX_CLIENT_FILE_BYTES
from trunkline.config.own_entries import CONFIG_VARIABLE, starts_config
from trunkline.config.references import parse_references
from trunkline.config.server_table import ServerEntry, check_server
from trunkline.config.write_toml import portable_server
from trunkline.documents.errors import ErrorCollector, KeyLocator, KeyPath
from trunkline.documents.parser import (
    Table,
    as_table,
    get_table,
    parse_json,
    parse_toml,
    read_text,
    scan_json,
)
from trunkline.files import create_file, folder_lock, rewrite_file
from trunkline.printable import SecretMask, secrets_in_arguments

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_COMMAND_KEYS = frozenset(("command", "args", "env", "env_vars", "envFile", "cwd"))
_URL_KEYS = frozenset(
    (
        *("url", "serverUrl", "httpUrl", "headers", "http_headers", "env_http_headers"),
        *("bearer_token_env_var", "oauth"),
    )
)
# Keys that say which server it is; the others are the user's.
_OWN_KEYS = frozenset(("type", "command", "args", "url", "serverUrl", "httpUrl"))
_TOKEN_NAMES = frozenset((TOKEN_VARIABLE.lower(), "authorization"))


class ChangedMeanwhile(OSError):
    """The client wrote its settings while they were being changed."""

    def __init__(self) -> None:
        super().__init__("the client has just written it; close the client, and try again")


class OldEntry(NamedTuple):
    """An entry of a client for a server that is behind the gateway, or for the gateway itself."""

    # The path of the object with the servers.
    place: KeyPath
    key: str
    reason: str

    @property
    def name(self) -> str:
        """The name of the entry, with its project if it belongs to one."""
        return self.key + (f" in the project {self.place[1]}" if len(self.place) > 1 else "")


class Settings(NamedTuple):
    """The settings of a client, as text and as a tree."""

    client: ClientApp
    path: Path
    text: str
    tree: Table

    def entry(self) -> Table:
        """Return the entry of the gateway."""
        return get_table(get_table(self.tree, self.client.member), ENTRY_NAME)


def read_settings(client: ClientApp, path: Path) -> Settings:
    """Return the settings in a file, which may be missing; raises ConfigErrors."""
    text = ""
    if path.exists():
        text = read_text(path, MAX_CLIENT_FILE_BYTES)
    return parse_settings(client, path, text)


def parse_settings(client: ClientApp, path: Path, text: str) -> Settings:
    """Return the settings in a text; raises ConfigErrors."""
    parse = parse_toml if client.format == "toml" else parse_json
    parsed = parse(text if text.strip() or client.format == "toml" else "{}", str(path))
    tree = as_table(parsed.tree)
    if parsed.is_complete and tree is None:
        parsed.errors.add_error((), "expected an object", "put the settings in braces")
    elif tree is not None and not isinstance(tree.get(client.member, {}), dict):
        parsed.errors.add_error((client.member,), "expected an object", "put servers in braces")
    parsed.errors.raise_if_any()
    return Settings(client, path, text, tree or {})


# Old entries


def find_old_entries(settings: Settings, gateway: RawConfig | None) -> list[OldEntry]:
    """Return the entries that would run a server of the gateway, or the gateway, a second time."""
    if gateway is None:
        return []
    own = {
        entry.name: portable_server(entry, gateway)
        for entry in gateway.entries
        if entry.table.get("disabled") is not True
    }
    found: list[OldEntry] = []
    for place, key, table in _client_servers(settings):
        if (place, key) == ((settings.client.member,), ENTRY_NAME):
            continue
        http = get_table(gateway.tables, "http")
        if _starts_gateway(table, gateway.file) or is_own_url(table.get("url"), http):
            found.append(OldEntry(place, key, "it is this gateway, under another name"))
        elif (name := next((n for n, each in own.items() if _is_same(each, table)), None)) is None:
            continue
        else:
            kind = "url" if "url" in table else "command"
            found.append(OldEntry(place, key, f"servers.{name} of the gateway has the same {kind}"))
    return found


def _starts_gateway(table: Table, source: Path) -> bool:
    # Without a name, the configuration depends on the folder in which the client starts it.
    words = [*map(str, table.get("args") or ()), *get_table(table, "env")]
    is_named = any(word.startswith("--config") or word == CONFIG_VARIABLE for word in words)
    return is_named and starts_config(table, source)


def _client_servers(settings: Settings) -> Iterator[tuple[KeyPath, str, Table]]:
    """Yield the enabled servers of a client in our notation, with their places."""
    client, tree = settings.client, settings.tree
    places: list[KeyPath] = [(client.member,)]
    if client.projects is not None:
        places += [(client.projects, each, client.member) for each in _keys(tree, client.projects)]
    for place in places:
        servers: Table = tree
        for key in place:
            servers = get_table(servers, str(key))
        report = ErrorCollector("", KeyLocator("", scan_json))
        wrapped = {"mcpServers": servers, "inputs": tree.get("inputs")}
        parsed = parse_client_servers(wrapped, report)
        raw = RawConfig(file=settings.path, entries=(), inputs=parsed.inputs, is_client=True)
        for entry in parsed.entries:
            # Invalid entries stay: the client cannot start them, so nothing runs twice.
            if _is_valid(entry) and entry.table.get("disabled") is not True:
                yield place, str(entry.root[1]), portable_server(entry, raw)


def _is_valid(entry: ServerEntry) -> bool:
    report = ErrorCollector("", KeyLocator("", scan_json))
    check_server(entry, report.add_error)
    return not report.has_errors


def _keys(tree: Table, key: str) -> list[str]:
    return list(get_table(tree, key))


def _is_same(own: Table, other: Table) -> bool:
    """Whether two tables are the same server; a reference may stand for any text."""
    if "url" in own:
        texts = [(own["url"].rstrip("/"), str(other.get("url", "")).rstrip("/"))]
    else:
        mine, theirs = _command(own), _command(other)
        texts = list(zip(mine, theirs, strict=False))
        if not mine or len(mine) != len(theirs):
            return False
    for key in ("env", "headers"):  # two accounts of one service are two servers
        mine, theirs = get_table(own, key), get_table(other, key)
        texts += [(mine[name], theirs[name]) for name in mine if name in theirs]
    return all(_matches(one, another) or _matches(another, one) for one, another in texts)


def _command(table: Table) -> list[str]:
    return [table["command"], *table.get("args", ())] if "command" in table else []


def _matches(text: str, other: str) -> bool:
    parts = parse_references(text, is_client=False)
    pattern = "".join(re.escape(part) if isinstance(part, str) else ".*" for part in parts)
    return re.fullmatch(pattern, other, re.DOTALL) is not None


# The new text


def merge_entry(old: Table, new: Table) -> Table:
    """Return `new` with the user's own keys and the token of `old`."""
    foreign = _URL_KEYS if "command" in new else _COMMAND_KEYS
    merged = {key: value for key, value in old.items() if key not in foreign | _OWN_KEYS}
    merged |= new
    for key in ("env", "headers"):
        if key in merged:
            merged[key] = _merge_values(get_table(old, key), get_table(new, key))
    if "env_vars" in new:
        found = old.get("env_vars")
        names = cast("list[str]", found) if isinstance(found, list) else []
        merged["env_vars"] = [*names, *(name for name in new["env_vars"] if name not in names)]
    if "bearer_token_env_var" in new:
        merged["bearer_token_env_var"] = old.get(
            "bearer_token_env_var", new["bearer_token_env_var"]
        )
        headers = [*_keys(old, "http_headers"), *_keys(old, "env_http_headers")]
        if any(name.lower() in _TOKEN_NAMES for name in headers):
            del merged["bearer_token_env_var"]
    return {**{key: merged[key] for key in old if key in merged}, **merged}


def _merge_values(old: Table, new: Table) -> Table:
    """Return `new` over `old`, but with the token of `old` unless that is still to be pasted."""
    tokens = {
        name.lower()
        for name, value in old.items()
        if name.lower() in _TOKEN_NAMES and value and PASTED_TOKEN not in str(value)
    }
    return old | {name: value for name, value in new.items() if name.lower() not in tokens}


def edit_settings(settings: Settings, entry: Table, old: list[OldEntry]) -> str:
    """Return the text with the entry of the gateway and without old ones; raises EditError."""
    client, text = settings.client, settings.text
    before = settings.entry()
    if client.format == "toml":
        if before != entry:
            text = remove_server(text, ENTRY_NAME, client.member) if before else text
            text = add_server(text, ENTRY_NAME, entry, client.member)
        for each in old:
            text = remove_server(text, each.key, client.member)
        return text
    if before != entry:
        text = set_member(text, (client.member, ENTRY_NAME), entry)
    asked = client.input_of(entry)
    if asked is not None and asked["id"] not in _input_ids(settings.tree):
        text = append_item(text, ("inputs",), asked)
    for each in old:
        text = remove_member(text, (*each.place, each.key))
    return text


def _input_ids(tree: Table) -> list[object]:
    inputs = tree.get("inputs")
    items = cast("list[Any]", inputs) if isinstance(inputs, list) else []
    return [(as_table(each) or {}).get("id") for each in items]


def masked_texts(settings: Settings, text: str) -> tuple[str, str]:
    """Return the old and the new text with the secrets of the client's entries masked."""
    mask = SecretMask(_secrets(settings.tree))
    return mask(settings.text).expandtabs(4), mask(text).expandtabs(4)


def _secrets(value: object, is_secret: bool = False) -> Iterator[str]:
    """Yield the values of `env` and `headers` in a tree, and secrets in arguments and URLs."""
    if isinstance(value, dict):
        for key, each in cast("Table", value).items():
            yield from _secrets(each, is_secret or key in {"env", "headers", "http_headers"})
    elif isinstance(value, list):
        items = cast("list[object]", value)
        yield from secrets_in_arguments([each for each in items if isinstance(each, str)])
        for each in items:
            yield from _secrets(each, is_secret)
    elif isinstance(value, str):
        # A reference is no secret.
        yield from (value,) if is_secret and "${" not in value else secrets_in_arguments([value])


# The file


def write_settings(settings: Settings, text: str) -> Path | None:
    """Replace the file, and return its backup, None for a new file; raises OSError."""
    path = settings.path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with folder_lock(path.parent):
        if not path.exists():
            create_file(path, text.encode())
            return None
        old = path.read_bytes()
        mark = _BYTE_ORDER_MARK if old.startswith(_BYTE_ORDER_MARK) else b""
        if old != mark + settings.text.encode():
            raise ChangedMeanwhile
        backup = _create_backup(path, old)
        rewrite_file(path, mark + text.encode())
        return backup


def _create_backup(path: Path, content: bytes) -> Path:
    stamp, number = time.strftime("%Y%m%d-%H%M%S"), 1
    while True:
        suffix = "" if number == 1 else f"-{number}"
        backup = path.with_name(f"{path.name}.{stamp}{suffix}.bak")
        try:
            create_file(backup, content)
        except FileExistsError:
            number += 1
        else:
            return backup
