"""Writes a `trunkline.toml` that configures what other files do: for `trunkline import`.

Rules upheld here:
1. What is written loads back to the same servers, wherever the new file is put: references stay
   references, and what was relative to the old file becomes absolute. Only a path that begins with
   a variable stays as it is, since what it is relative to depends on the variable.
2. A secret that stands in the old file is kept, with a word on how to do better.
"""

import json
import os
import re
from pathlib import Path
from typing import Any, cast

from trunkline.config.auth_table import KeyTable, modes_of
from trunkline.config.client_entries import safe_names
from trunkline.config.entry import KNOWN, Entry
from trunkline.config.http_table import FILES
from trunkline.config.load import Draft
from trunkline.config.settle import SUBSTITUTED, each_text
from trunkline.config.substitute import Reference, Surroundings, parts, variable_of
from trunkline.documents.errors import quoted
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, as_table

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DOLLARS = re.compile(r"\$+(?=\{)|\$\$+")  # those that mean something; a lone one does not
_DOLLARS_BEFORE = re.compile(rf"{_DOLLARS.pattern}|\$+\Z")
_SECRET = re.compile(r"token|key|secret|password|authorization", re.IGNORECASE)
_TABLES = ("env", "headers", "oauth")
_BRACES = re.compile(r"[{}]")


def to_toml(*drafts: Draft) -> str:
    """Return one file for the servers of all `drafts`; equal ones are written once.

    What is said about the gateway itself is that of the first.
    """
    lines: list[str] = []
    written: dict[str, Table] = {}
    for draft in drafts:
        lines.append(f"# from {quoted(str(draft.file))}")
        if draft is drafts[0] and draft.gateway:
            lines += ["", "[gateway]", *_pairs(draft.gateway)]
        if draft is drafts[0] and draft.http:
            lines += ["", "[http]", *_pairs(_portable_http(draft))]
        if draft is drafts[0] and draft.kill_switch:
            lines += ["", "[kill_switch]", *_pairs(draft.kill_switch)]
        if draft is drafts[0] and draft.auth is not None:
            lines += _auth(draft.auth, draft.file.absolute().parent)
        for name, table in draft.observe.items() if draft is drafts[0] else ():
            lines += ["", f"[{name}]", *_pairs(table)] if table else []
        for entry in draft.entries:
            table = _portable(entry, draft)
            if written.get(entry.name) != table:
                name = _free_name(entry.name, written)
                written[name] = table
                lines += ["", *_server(name, table)]
        lines.append("")
    return "\n".join(lines)


def _free_name(name: str, taken: dict[str, Table]) -> str:
    """Return `name`, or one like it if another file has had it."""
    if name not in taken:
        return name
    # A name with a space is never free: it asks for another that is.
    return safe_names([*taken, f"{name} "])[f"{name} "]


def _portable(entry: Entry, draft: Draft) -> Table:
    """Return the table of `entry` as it can stand in any `trunkline.toml`."""
    around = draft.surroundings({})
    table = {key: entry.table[key] for key in KNOWN if key in entry.table}

    def write(text: str, path: KeyPath) -> str:
        return _template(text, path[0] in {"cwd", "env_file"}, around)

    for key in SUBSTITUTED:
        if key in table:
            table[key] = each_text(table[key], (key,), write)
    return table


def _portable_http(draft: Draft) -> Table:
    """Return the `[http]` table as it can stand anywhere: what it names by a path is absolute."""
    folder = draft.file.absolute().parent
    files = {key: draft.http[key] for key in FILES if key in draft.http}
    return draft.http | {
        key: str(folder / name) for key, name in files.items() if _is_relative(name)
    }


def _auth(auth: Table, folder: Path) -> list[str]:
    """Return the lines of `[auth]`, as they can stand anywhere."""
    tables = {key: as_table(auth[key]) or {} for key in ("jwt", "key") if key in auth}
    lines = ["", "[auth]", *_pairs({key: auth[key] for key in auth if key not in tables})]
    if "key" in modes_of(auth):
        tables["key"] = {"file": KeyTable().file} | tables.get("key", {})
    for name, table in tables.items():
        files = {key: table[key] for key in ("jwks_file", "file") if key in table}
        absolute = {key: str(folder / at) for key, at in files.items() if _is_relative(at)}
        lines += ["", f"[auth.{name}]", *_pairs(table | absolute)]
    return lines


def _template(text: str, is_path: bool, around: Surroundings) -> str:
    """Write a text with references so that it means the same in our own files."""
    found = parts(text, around.is_client)
    if is_path and isinstance(start := found[0], str) and _is_relative(start):
        found[0] = f"{around.folder}{os.sep}{start}"  # not joined as a Path: its last slash stays
    written = literal = ""
    for piece, is_reference in (_piece(part, around) for part in found):
        if is_reference:
            # A dollar sign right before a reference would otherwise become part of it.
            written += _DOLLARS_BEFORE.sub(_twice, literal) + piece
            literal = ""
        else:
            literal += piece
    return written + _DOLLARS.sub(_twice, literal)


def _is_relative(path: str) -> bool:
    return not path.startswith("~/") and not Path(path).is_absolute()


def _twice(found: re.Match[str]) -> str:
    return found[0] * 2


def _piece(part: str | Reference, around: Surroundings) -> tuple[str, bool]:
    """Return what to write for a part, and whether that is a reference."""
    if isinstance(part, str):
        return part, False
    match part.kind:
        case "variable":
            return _variable(part.name, part.default), True
        case "input":
            return _variable(variable_of(part.name), around.inputs.get(part.name)), True
        case "file":
            path = part.name if part.name.startswith("~/") else str(around.folder / part.name)
            return f"${{file:{part.name if _BRACES.search(path) else path}}}", True
        case "place" if part.name != "userHome":
            return around.place(part.name) or "", False
        case _:
            return f"${{{part.name}}}", True


def _variable(name: str, default: str | None) -> str:
    # A default with braces cannot be written; whoever sets the variable does not miss it.
    is_plain = default is not None and not _BRACES.search(default)
    return f"${{{name}:-{default}}}" if is_plain else f"${{{name}}}"


def _server(name: str, table: Table) -> list[str]:
    header = f"servers.{_key(name)}"
    lines = [f"[{header}]", *_pairs({k: v for k, v in table.items() if k not in _TABLES})]
    for key in _TABLES:
        inner: dict[str, str] = table.get(key, {})
        lines += ["", f"[{header}.{key}]"] if inner else []
        for each, value in inner.items():
            if _SECRET.search(each) and not _has_reference(value):
                variable = variable_of(each if key == "env" else f"{name}_{each}")
                lines.append(f'# could be "${{{variable}}}": then the secret is not in this file')
            lines += _pairs({each: value})
    return lines


def _has_reference(text: str) -> bool:
    return any(isinstance(part, Reference) for part in parts(text, is_client=False))


def _pairs(table: Table) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items()]


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, cast('list[Any]', value)))}]"
    return json.dumps(value)


def _text(text: str) -> str:
    # TOML's escapes are JSON's, but it has one more character that must not stand as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
