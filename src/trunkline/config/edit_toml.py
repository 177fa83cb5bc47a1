"""Edits the servers of a TOML file in its text, so that everything else stays as it is.

The file is a `trunkline.toml`, with its servers below `servers`, or the settings of a client.

    text ──scan──> offsets of statements ──> cut or insert lines ──> parse ──> as expected?

`tomlkit` is not used: it puts a new key below comments that belong to the next table, and removes
those comments together with a table (docs/design/0027-libraries.md).

Invariants:
1. The result has exactly the tables of the old text and the change; else EditError is raised.
2. Comments outside of a removed table stay, except those right above its header.
3. Line ends stay as they are.
"""

import re
import tomllib
from collections.abc import Callable, Iterable
from copy import deepcopy

from trunkline.config.write_toml import write_server
from trunkline.documents.errors import KeyPath, TomlStatement
from trunkline.documents.parser import Table, get_table, scan_toml

_COMMENT_LINES = re.compile(r"(?:[ \t]*#[^\n]*(?:\n|\Z))*")
_BLANK_LINES = re.compile(r"(?:[ \t]*(?:\n|\Z))*")
EDIT_BY_HAND = "edit the file by hand: it is written in a way that cannot be changed safely"


class EditError(ValueError):
    """The text cannot be edited; the message says why."""


def add_server(text: str, name: str, table: Table, root: str = "servers") -> str:
    """Return `text` with one more server, below the other servers; raises EditError."""

    def change(tree: Table) -> None:
        servers = tree.setdefault(root, {})
        if not isinstance(servers, dict) or name in servers:
            raise EditError(f"there is a server {name!r} already; remove it first")
        servers[name] = table

    def edit(text: str) -> Iterable[str]:
        try:
            lines = "\n".join(write_server(name, table, root)) + "\n"
        except TypeError:  # a date, which no server has
            return
        own = [each for each in _statements(text) if each.path[0] == root]
        for at in (*([_end_of_block(text, own[-1].end)] if own else ()), len(text)):
            before = text[:at] if text[:at].endswith("\n") or not at else text[:at] + "\n"
            yield before + ("\n" if before else "") + lines + text[at:]

    return _edit(text, change, edit)


def remove_server(text: str, name: str, root: str = "servers") -> str:
    """Return `text` without a server; raises EditError."""

    def change(tree: Table) -> None:
        del _servers_with(tree, name, root)[name]
        if not tree[root] and (root,) not in {each.path for each in _statements(text)}:
            del tree[root]

    def edit(text: str) -> Iterable[str]:
        for start, end in reversed(_blocks(text, (root, name))):
            text = _cut(text, start, end)
        yield text

    return _edit(text, change, edit)


def set_disabled(text: str, name: str, *, disabled: bool) -> str:
    """Return `text` with a server disabled or enabled; raises EditError."""
    path = ("servers", name, "disabled")

    def change(tree: Table) -> None:
        server = _servers_with(tree, name, "servers")[name]
        if disabled or server.get("disabled") is not None:
            server["disabled"] = disabled

    def edit(text: str) -> Iterable[str]:
        statements = _statements(text)
        value = "true" if disabled else "false"
        for each in statements:
            if each.path == path:
                written = text[each.start : each.end]
                key, _, old = written.partition("=")
                space = old[len(old.rstrip()) :]
                yield f"{text[: each.start]}{key.rstrip()} = {value}{space}{text[each.end :]}"
                return
        if not disabled:
            yield text
            return
        for number, each in enumerate(statements):
            if each.path != path[:2]:
                continue
            if not each.is_header:  # an inline table
                yield f"{text[: each.end - 1].rstrip()}, disabled = true }}{text[each.end :]}"
                return
            own = [each]
            for following in statements[number + 1 :]:
                if following.is_header:
                    break
                own.append(following)
            at = _end_of_line(text, own[-1].end)
            before = text[:at] if text[:at].endswith("\n") else text[:at] + "\n"
            yield f"{before}disabled = true\n{text[at:]}"
            return

    return _edit(text, change, edit)


def _edit(text: str, change: Callable[[Table], None], edit: Callable[[str], Iterable[str]]) -> str:
    """Return the first result of `edit` that has the tables of `text` after `change`."""
    plain = text.replace("\r\n", "\n")
    expected = deepcopy(tomllib.loads(plain))
    change(expected)
    for edited in edit(plain):
        try:
            is_exact = tomllib.loads(edited) == expected
        except tomllib.TOMLDecodeError:
            continue
        if is_exact:
            return edited.replace("\n", "\r\n") if "\r\n" in text else edited
    raise EditError(EDIT_BY_HAND)


def _servers_with(tree: Table, name: str, root: str) -> Table:
    servers = get_table(tree, root)
    if name not in servers:
        names = ", ".join(servers) or "none"
        raise EditError(f"there is no server {name!r}; servers in the file: {names}")
    return servers


def _statements(text: str) -> list[TomlStatement]:
    return scan_toml(text).statements


def _blocks(text: str, path: KeyPath) -> list[tuple[int, int]]:
    """Return the ranges of consecutive statements below `path`, with the comments inside."""
    blocks: list[tuple[int, int]] = []
    is_open = False
    for each in _statements(text):
        belongs = each.path[: len(path)] == path
        if belongs and is_open:
            blocks[-1] = (blocks[-1][0], _end_of_block(text, each.end))
        elif belongs:
            start = _start_with_comments(text, each.start) if each.is_header else each.start
            blocks.append((start, _end_of_block(text, each.end)))
        is_open = belongs
    return blocks


def _start_with_comments(text: str, start: int) -> int:
    """Return where the comments right above a header begin; those at the top of a file stay."""
    at = start
    while at > 0:
        before = text.rfind("\n", 0, at - 1) + 1
        if not text[before:at].lstrip(" \t").startswith("#"):
            return at
        at = before
    return start


def _end_of_line(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def _end_of_block(text: str, at: int) -> int:
    """Return the end of a statement's line and of the comments right below it.

    Comments right above the next header belong to that.
    """
    line_end = _end_of_line(text, at)
    found = _COMMENT_LINES.match(text, line_end)
    end = found.end() if found else line_end
    is_last = end == len(text) or text[end : _end_of_line(text, end)].strip() == ""
    return end if is_last else line_end


def _cut(text: str, start: int, end: int) -> str:
    """Remove a range of lines, and the blank lines that would be too many."""
    found = _BLANK_LINES.match(text, end)
    after = text[found.end() if found else end :]
    before = text[:start]
    if not after:
        return before.rstrip("\n") + "\n" if before.strip() else ""
    has_gap = not before or before.endswith("\n\n") or found is None or found.end() == end
    return before + ("" if has_gap else "\n") + after
