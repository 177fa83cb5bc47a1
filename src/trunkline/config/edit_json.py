"""Edits the JSON settings of clients in their text, so that everything else stays as it is.

    text ──scan──> offsets of members ──> cut or insert ──> parse ──> as expected?

Comments and trailing commas are allowed, as in the settings of editors.

Invariants:
1. The result has exactly the values of the old text and the change; else EditError is raised.
2. Everything outside of the changed members stays, with comments and line ends. A comment right
   above a removed member, or behind it on its line, is removed with it.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any, cast

from trunkline.config.edit_toml import EDIT_BY_HAND, EditError
from trunkline.documents.errors import KeyPath
from trunkline.documents.parser import JSON_TOKEN, blank_comments, parse_json

_DEFAULT_UNIT = "  "


def set_member(text: str, path: KeyPath, value: object) -> str:
    """Return `text` with the value at `path`; missing objects above it are added."""

    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = _object(tree).setdefault(key, {})
        _object(tree)[path[-1]] = value

    def edit(text: str) -> Iterable[str]:
        node, depth = _scan(text), 0
        while depth < len(path) and (child := node.child(path[depth])) is not None:
            node, depth = child, depth + 1
        if depth == len(path):
            indent = _indent_at(text, node.start)
            rendered = _render(text, value, indent, _unit(text))
            yield text[: node.value_start] + rendered + text[node.end :]
            return
        inner = value
        for key in reversed(path[depth + 1 :]):
            inner = {key: inner}
        yield from _insert(text, node, inner, str(path[depth]))

    return _edit(text, change, edit)


def append_item(text: str, path: KeyPath, value: object) -> str:
    """Return `text` with one more element in the list at `path`, which may be missing."""

    def change(tree: Any) -> None:
        items = _value_at(tree, path)
        if not isinstance(items, list):
            raise EditError(EDIT_BY_HAND)
        cast("list[Any]", items).append(value)

    def edit(text: str) -> Iterable[str]:
        yield from _insert(text, _find(text, path), value, None)

    if not _has(parse_json(text, "").tree, path):
        return set_member(text, path, [value])
    return _edit(text, change, edit)


def remove_member(text: str, path: KeyPath) -> str:
    """Return `text` without the member at `path`; raises EditError."""

    def change(tree: Any) -> None:
        _value_at(tree, path)
        del _value_at(tree, path[:-1])[path[-1]]

    def edit(text: str) -> Iterable[str]:
        parent = _find(text, path[:-1])
        node = parent.child(path[-1])
        if node is None:
            return
        for start, end in _ranges(text, parent, node):
            yield _cut(text, parent, node, start, end)

    return _edit(text, change, edit)


def _edit(text: str, change: Callable[[Any], None], edit: Callable[[str], Iterable[str]]) -> str:
    """Return the first result of `edit` that has the values of `text` after `change`."""
    if not text.strip():
        text = "{}\n"
    parsed = parse_json(text, "")
    if not parsed.is_complete:
        raise EditError(EDIT_BY_HAND)
    expected = deepcopy(parsed.tree)
    change(expected)
    if expected == parsed.tree:
        return text
    for edited in edit(text):
        if parse_json(edited, "").tree == expected:
            return edited
    raise EditError(EDIT_BY_HAND)


def _object(value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise EditError(EDIT_BY_HAND)
    return cast("dict[Any, Any]", value)


def _value_at(tree: Any, path: KeyPath) -> Any:
    for key in path:
        if not _has(tree, (key,)):
            raise EditError(EDIT_BY_HAND)
        tree = tree[key]
    return tree


def _has(tree: Any, path: KeyPath) -> bool:
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = cast("dict[Any, Any]", tree)[key]
    return True


class _Node:
    """A value in the text, with its key if it is a member of an object."""

    def __init__(self, key: str | None, start: int, value_start: int, end: int) -> None:
        self.key = key
        # Where the key begins, or the value if there is none.
        self.start = start
        self.value_start = value_start
        self.end = end
        # The end of the comma after it.
        self.comma_end: int | None = None
        self.is_object = False
        self.children: list[_Node] = []

    def child(self, key: str | int) -> "_Node | None":
        return next((each for each in self.children if each.key == key), None)


def _scan(text: str) -> _Node:
    """Return the tree of positions of a valid text."""
    root, stack, key = _Node(None, 0, 0, 0), list[_Node](), None
    for found in JSON_TOKEN.finditer(blank_comments(text, keep_commas=True)):
        lexeme, top = found[0], stack[-1] if stack else root
        if lexeme == ",":
            top.children[-1].comma_end = found.end()
        elif lexeme in "}]":
            stack.pop().end = found.end()
        elif lexeme != ":" and top.is_object and key is None:
            key = found
        elif lexeme != ":":
            name = None if key is None else str(json.loads(key[0]))
            start = found.start() if key is None else key.start()
            node = _Node(name, start, found.start(), found.end())
            top.children.append(node)
            key = None
            if lexeme in "{[":
                node.is_object = lexeme == "{"
                stack.append(node)
    return root.children[0]


def _find(text: str, path: KeyPath) -> _Node:
    node = _scan(text)
    for key in path:
        child = node.child(key)
        if child is None:
            raise EditError(EDIT_BY_HAND)
        node = child
    return node


# Insert


def _insert(text: str, parent: _Node, value: object, key: str | None) -> Iterator[str]:
    """Yield texts with one more child at the end of an object or a list."""
    newline, unit, close = _newline(text), _unit(text), parent.end - 1
    if not parent.children:
        outer = _indent_at(text, parent.start)
        inner = text[parent.value_start + 1 : close].rstrip()
        member = outer + unit + _with_key(key, _render(text, value, outer + unit, unit))
        before = text[: parent.value_start + 1] + inner
        yield f"{before}{newline}{member}{newline}{outer}{text[close:]}"
        return
    first, last = parent.children[0], parent.children[-1]
    comma, end = ("", last.comma_end) if last.comma_end is not None else (",", last.end)
    before = text[: last.end] + comma + text[last.end : end]
    if not _is_first_on_line(text, first.start):
        yield f"{before} {_with_key(key, json.dumps(value, ensure_ascii=False))}{text[end:]}"
        return
    indent = _indent_at(text, first.start)
    # A list or object that ends with a comma keeps one.
    member = indent + _with_key(key, _render(text, value, indent, unit)) + ("" if comma else ",")
    line_end = text.find("\n", end)
    if line_end >= 0 and line_end < close:
        yield f"{before}{text[end : line_end + 1]}{member}{newline}{text[line_end + 1 :]}"
    yield f"{before}{newline}{member}{text[end:]}"


def _render(text: str, value: object, indent: str, unit: str) -> str:
    """Return a value on several lines, with `indent` before all but the first."""
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return (_newline(text) + indent).join(lines)


def _with_key(key: str | None, rendered: str) -> str:
    return rendered if key is None else f"{json.dumps(key, ensure_ascii=False)}: {rendered}"


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _unit(text: str) -> str:
    """Return what a level is indented by."""
    top = _scan(text).children
    if not top or not _is_first_on_line(text, top[0].start):
        return _DEFAULT_UNIT
    return _indent_at(text, top[0].start) or _DEFAULT_UNIT


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _is_first_on_line(text: str, at: int) -> bool:
    return not text[_line_start(text, at) : at].strip()


def _indent_at(text: str, at: int) -> str:
    line = text[_line_start(text, at) : at]
    return line[: len(line) - len(line.lstrip())]


# Remove


def _ranges(text: str, parent: _Node, node: _Node) -> Iterator[tuple[int, int]]:
    """Yield the ranges that may be cut out for a node: whole lines, or just the node."""
    plain = blank_comments(text, keep_commas=True)
    end = node.end if node.comma_end is None else node.comma_end
    line_end = text.find("\n", end)
    has_own_line = _is_first_on_line(plain, node.start) and 0 <= line_end < parent.end
    if has_own_line and not plain[end:line_end].strip():
        yield _start_with_comments(text, plain, node.start), line_end + 1
    space = len(text[end:]) - len(text[end:].lstrip(" \t"))
    yield node.start, end + (space if node.comma_end is not None else 0)


def _start_with_comments(text: str, plain: str, at: int) -> int:
    """Return where the line of a member begins, or the comments right above it."""
    start = _line_start(text, at)
    while start > 0:
        above = _line_start(text, start - 1)
        if plain[above:start].strip() or not text[above:start].strip():
            return start
        start = above
    return start


def _cut(text: str, parent: _Node, node: _Node, start: int, end: int) -> str:
    """Cut a range with a node out, and the comma before it if that would be the last."""
    index = parent.children.index(node)
    before = text[:start]
    if index == len(parent.children) - 1 and node.comma_end is None and index > 0:
        comma_end = cast("int", parent.children[index - 1].comma_end)
        between = before[comma_end:]
        before = before[: comma_end - 1] + (between if between.strip(" \t") else "")
    edited = before + text[end:]
    close = parent.end - 1 - (len(text) - len(edited))
    if not edited[parent.value_start + 1 : close].strip():
        return edited[: parent.value_start + 1] + edited[close:]
    return edited
