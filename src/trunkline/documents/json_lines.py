"""Finds the keys of a JSON text, and what people write beside JSON: comments, trailing commas.

Rules upheld here:
1. What `without_comments` returns is as long as what it was given, line by line, so that a place
   in one is the same place in the other.
2. Any text gives an index; in valid JSON every member and every element has its
   place, down to MAX_DEPTH.
"""

import json
import re
import sys

from trunkline.documents.lines import Index, KeyPath

_COMMENT = r"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z)"
# Strings come first, so that nothing inside of one is taken for a comment.
_EXTRA = re.compile(rf'"(?:[^"\\\n]|\\.)*+"?|{_COMMENT}|,(?=(?:\s|{_COMMENT})*+[\]}}])')
_NOT_NEWLINE = re.compile(r"[^\n]")
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)

_CONSTANTS = ("NaN", "Infinity")
"""What Python would read as a number, and JSON does not know."""


def without_comments(text: str) -> str:
    """Return `text` with blanks for comments and for commas that nothing follows."""
    return _EXTRA.sub(lambda found: found[0] if found[0][0] == '"' else blank(found[0]), text)


def blank(text: str) -> str:
    """Return as many spaces, and the same newlines."""
    return _NOT_NEWLINE.sub(" ", text)


def unread_number(text: str) -> int:
    """Return where the first number stands that is none, such as NaN, or too long for Python."""
    most = sys.get_int_max_str_digits() or len(text)
    for found in _PIECE.finditer(text):
        piece = found[0].removeprefix("-")
        if piece in _CONSTANTS or (len(piece) > most and piece.isdecimal()):
            return found.start()
    return 0


def deepest(text: str) -> int:
    """Return where the first of the innermost brackets stands."""
    place = depth = most = 0
    for found in _PIECE.finditer(text):
        if found[0] in "{[":
            depth += 1
            if depth > most:
                place, most = found.start(), depth
        elif found[0] in "}]":
            depth -= 1
    return place


class _Open:
    """An object or an array whose end is still to come."""

    def __init__(self, path: KeyPath, is_object: bool) -> None:
        self.path = path
        self.is_object = is_object
        self.count = 0
        self.key: str | None = None

    def child(self) -> KeyPath:
        return (*self.path, self.count if self.key is None else self.key)


def scan_json(text: str) -> Index:
    """Return where the keys of `text` stand; it has no comments any more."""
    index = Index()
    stack: list[_Open] = []
    for found in _PIECE.finditer(text):
        piece = found[0]
        top = stack[-1] if stack else None
        if piece == ",":
            if top:
                top.count += 1
                top.key = None
        elif piece in "}]":
            del stack[-1:]
        elif top and top.is_object and top.key is None:
            top.key = _unquote(piece)
            index.give(top.child(), found.start())
        elif piece != ":":
            path = top.child() if top else ()
            if top and not top.is_object:
                index.give(path, found.start())
            if piece in "{[":
                stack.append(_Open(path, piece == "{"))
    return index


def _unquote(piece: str) -> str:
    try:
        return str(json.loads(piece))
    except ValueError:
        return piece
