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
from typing import Any, cast

from trunkline.config.client_entries import safe_names
from trunkline.config.entry import KNOWN, Entry
from trunkline.config.load import Draft
from trunkline.config.paths import is_relative
from trunkline.config.settle import PATHS, SUBSTITUTED
from trunkline.config.substitute import (
    Reference,
    each_text,
    left_to_server,
    own_variables,
    parts,
    variable_of,
)
from trunkline.config.surroundings import Surroundings
from trunkline.config.tables import TABLES
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
    taken: list[str] = []
    written: dict[str, list[Table]] = {}
    for draft in drafts:
        lines.append(f"# from {quoted(str(draft.file))}")
        lines += _gateway(draft) if draft is drafts[0] else []
        for entry in draft.entries:
            table = _portable(entry, draft)
            alike = written.setdefault(entry.name, [])
            if table not in alike:
                alike.append(table)
                taken.append(_free_name(entry.name, taken))
                lines += ["", *_server(taken[-1], table)]
        lines.append("")
    return "\n".join(lines)


def _free_name(name: str, taken: list[str]) -> str:
    """Return `name`, or one like it if another file has had it."""
    if name not in taken:
        return name
    # A name with a space is never free: it asks for another that is.
    return safe_names([*taken, f"{name} "])[f"{name} "]


def _portable(entry: Entry, draft: Draft) -> Table:
    """Return the table of `entry` as it can stand in any `trunkline.toml`."""
    around = draft.surroundings({})
    table = {key: entry.table[key] for key in KNOWN if key in entry.table}

    own = own_variables(table, around.is_client)

    def write(text: str, path: KeyPath) -> str:
        found = parts(text, around.is_client)
        if path[0] == "args":
            found = left_to_server(found, own)
        return _template(found, path[0] in PATHS, around)

    for key in SUBSTITUTED:
        if key in table:
            table[key] = each_text(table[key], (key,), write)
    return table


def _gateway(draft: Draft) -> list[str]:
    """Return the lines of all tables but the servers', as they can stand anywhere."""
    lines: list[str] = []
    for name, ways in TABLES.items():
        value = draft.tables.get(name)
        if isinstance(value, list):
            for each in cast("list[Table]", value):
                lines += ["", f"[[{name}]]", *_pairs(each)]
        elif value is not None:
            folder = draft.file.absolute().parent
            lines += ["", *_table(name, ways.portable(value, folder) if ways.portable else value)]
    return lines


def _table(name: str, table: Table) -> list[str]:
    """Return the lines of a table, and then those of the tables in it."""
    inner = {key: found for key, value in table.items() if (found := as_table(value)) is not None}
    lines = [f"[{name}]", *_pairs({k: v for k, v in table.items() if k not in inner})]
    for key, value in inner.items():
        lines += ["", f"[{name}.{_key(key)}]", *_pairs(value)]
    return lines


def _template(found: list[str | Reference], is_path: bool, around: Surroundings) -> str:
    """Write a text with references so that it means the same in our own files."""
    if is_path and isinstance(start := found[0], str) and is_relative(start):
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
    if (table := as_table(value)) is not None:
        return f"{{ {', '.join(_pairs(table))} }}"
    return json.dumps(value)


def _text(text: str) -> str:
    # TOML's escapes are JSON's, but it has one more character that must not stand as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
