"""Writes a `trunkline.toml` equivalent to other files, for `trunkline import`.

Invariants:
1. The result loads to the same servers from any folder: references stay references, and relative
   paths become absolute. Only a path that begins with a variable stays as it is.
2. A secret in the old file is kept, with a comment that suggests a variable.
"""

import json
import os
import re
from typing import Any, cast

from trunkline.config.client_files import unique_names
from trunkline.config.load import RawConfig
from trunkline.config.model import TABLE_HOOKS
from trunkline.config.references import (
    Reference,
    ResolveContext,
    is_relative,
    keep_server_variables,
    map_text,
    parse_references,
    server_variables,
    variable_name,
)
from trunkline.config.server_table import (
    ServerEntry,
    key_owners,
    path_keys,
    server_keys,
)
from trunkline.documents.errors import KeyPath, quote
from trunkline.documents.parser import Table, as_table
from trunkline.stdio.sandbox import SandboxSettings

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_DOLLAR_SIGNS = re.compile(r"\$+(?=\{)|\$\$+")  # a single one before other text needs no escape
_DOLLAR_SIGNS_BEFORE = re.compile(rf"{_DOLLAR_SIGNS.pattern}|\$+\Z")
_SECRET_NAME = re.compile(r"token|key|secret|password|authorization", re.IGNORECASE)
_INNER_TABLES = ("env", "headers", "oauth", "sandbox")
_BRACES = re.compile(r"[{}]")


def to_toml(*configs: RawConfig) -> str:
    """Return one file with the servers of all `configs`; equal ones are written once.

    The tables of the gateway itself come from the first.
    """
    lines: list[str] = []
    taken: list[str] = []
    written: dict[str, list[Table]] = {}
    for config in configs:
        lines.append(f"# from {quote(str(config.file))}")
        lines += _write_gateway_tables(config) if config is configs[0] else []
        for entry in config.entries:
            table = portable_server(entry, config)
            same_name = written.setdefault(entry.name, [])
            # Several clients often have the same server: write it once.
            if table not in same_name:
                same_name.append(table)
                taken.append(_free_name(entry.name, taken))
                lines += ["", *write_server(taken[-1], table)]
        lines.append("")
    return "\n".join(lines)


def _free_name(name: str, taken: list[str]) -> str:
    """Return `name`, or a variant if another file uses it."""
    if name not in taken:
        return name
    # A name with a space is invalid, so `unique_names` finds a free one.
    return unique_names([*taken, f"{name} "])[f"{name} "]


def portable_server(entry: ServerEntry, config: RawConfig) -> Table:
    """Return the table of `entry` for a file in any folder, in the notation of `trunkline.toml`."""
    context = config.resolve_context({})
    table = {key: entry.table[key] for key in server_keys() if key in entry.table}

    own, paths = server_variables(table, context.is_client), path_keys()
    sandbox_paths = SandboxSettings.PATH_KEYS

    def write(text: str, path: KeyPath) -> str:
        found = parse_references(text, context.is_client)
        # A client leaves these variables to the server, so they must stay text.
        if path[0] == "args":
            found = keep_server_variables(found, own)
        is_path = path[0] in paths or (path[0] == "sandbox" and path[1] in sandbox_paths)
        return _write_template(found, is_path, context)

    for key in key_owners():
        if key in table:
            table[key] = map_text(table[key], (key,), write)
    if sandbox := as_table(table.get("sandbox")):
        lists = {key: sandbox[key] for key in sandbox_paths if key in sandbox}
        lists = {key: map_text(each, ("sandbox", key), write) for key, each in lists.items()}
        table["sandbox"] = sandbox | lists
    return table


def _write_gateway_tables(config: RawConfig) -> list[str]:
    """Return the lines of all tables but the servers."""
    lines: list[str] = []
    for name, hooks in TABLE_HOOKS.items():
        value = config.tables.get(name)
        if isinstance(value, list):
            for each in cast("list[Table]", value):
                lines += ["", f"[[{name}]]", *_write_pairs(each)]
        elif value is not None:
            folder = config.file.absolute().parent
            lines += [
                "",
                *_write_table(name, hooks.portable(value, folder) if hooks.portable else value),
            ]
    return lines


def _write_table(name: str, table: Table) -> list[str]:
    """Return the lines of a table and its inner tables."""
    inner = {key: found for key, value in table.items() if (found := as_table(value)) is not None}
    # In TOML a table's own keys must precede its inner tables.
    lines = [f"[{name}]", *_write_pairs({k: v for k, v in table.items() if k not in inner})]
    for key, value in inner.items():
        lines += ["", f"[{name}.{_write_key(key)}]", *_write_pairs(value)]
    return lines


def _write_template(found: list[str | Reference], is_path: bool, context: ResolveContext) -> str:
    """Write a text with references so that it means the same in a `trunkline.toml`."""
    if is_path and isinstance(start := found[0], str) and is_relative(start):
        found[0] = f"{context.folder}{os.sep}{start}"  # a Path would drop the last slash
    written = literal = ""
    for piece, is_reference in (_write_part(part, context) for part in found):
        if is_reference:
            # Escape a dollar sign right before a reference; it would become part of it.
            written += _DOLLAR_SIGNS_BEFORE.sub(_doubled, literal) + piece
            literal = ""
        else:
            literal += piece
    return written + _DOLLAR_SIGNS.sub(_doubled, literal)


def _doubled(found: re.Match[str]) -> str:
    return found[0] * 2


def _write_part(part: str | Reference, context: ResolveContext) -> tuple[str, bool]:
    """Return the text of a part, and whether it is a reference."""
    if isinstance(part, str):
        return part, False
    match part.kind:
        case "variable":
            return _write_variable(part.name, part.default), True
        case "input":
            return _write_variable(variable_name(part.name), context.inputs.get(part.name)), True
        case "file":
            path = part.name if part.name.startswith("~/") else str(context.folder / part.name)
            # A brace would end the reference too early, so such a path stays relative.
            return f"${{file:{part.name if _BRACES.search(path) else path}}}", True
        # Folders depend on where the old file is, so write their values. The home
        # directory does not.
        case "place" if part.name != "userHome":
            return context.vscode_place(part.name) or "", False
        case _:
            return f"${{{part.name}}}", True


def _write_variable(name: str, default: str | None) -> str:
    # A default with braces cannot be written; the variable must be set then.
    is_plain = default is not None and not _BRACES.search(default)
    return f"${{{name}:-{default}}}" if is_plain else f"${{{name}}}"


def write_server(name: str, table: Table, root: str = "servers") -> list[str]:
    """Return the lines of a server's table and its inner tables."""
    header = f"{root}.{_write_key(name)}"
    if root != "servers":  # a client knows other keys
        return _write_table(header, table)
    lines = [
        f"[{header}]",
        *_write_pairs({k: v for k, v in table.items() if k not in _INNER_TABLES}),
    ]
    for key in _INNER_TABLES:
        inner: dict[str, Any] = table.get(key, {})
        # An empty sandbox still drops privileges.
        is_written = bool(inner) or (key == "sandbox" and key in table)
        lines += ["", f"[{header}.{key}]"] if is_written else []
        for each, value in inner.items():
            if key != "sandbox" and is_literal_secret(each, value):
                variable = variable_name(each if key == "env" else f"{name}_{each}")
                lines.append(f'# could be "${{{variable}}}": then this file has no secret')
            lines += _write_pairs({each: value})
    return lines


def is_literal_secret(name: str, value: str) -> bool:
    """Whether a value of `env` or `headers` is a secret by its name, and not a reference to one."""
    return _SECRET_NAME.search(name) is not None and not _has_reference(value)


def _has_reference(text: str) -> bool:
    return any(isinstance(part, Reference) for part in parse_references(text, is_client=False))


def _write_pairs(table: Table) -> list[str]:
    return [f"{_write_key(key)} = {_write_value(value)}" for key, value in table.items()]


def _write_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _write_text(key)


def _write_value(value: Any) -> str:
    if isinstance(value, str):
        return _write_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, cast('list[Any]', value)))}]"
    if (table := as_table(value)) is not None:
        return f"{{ {', '.join(_write_pairs(table))} }}"
    # JSON and TOML spell numbers and booleans alike.
    return json.dumps(value)


def _write_text(text: str) -> str:
    # TOML has the same escapes as JSON, and DEL must be escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
