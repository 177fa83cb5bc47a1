"""Patterns: names with `*` for any characters and `?` for one.

    github__*        every tool of github
    *__delete_*      whatever deletes, wherever
    fs__read_file    that one

Refuses regular expressions: no pattern can make matching slow, each part of it is looked for once.
Capitals are told apart, as in the names themselves.
"""

from collections.abc import Iterable


def fits(pattern: str, name: str) -> bool:
    """Tell whether a name is one that a pattern means, the whole of it."""
    first, *rest = pattern.split("*")
    if not rest:
        return len(name) == len(first) and _begins(name, 0, first)
    *middle, last = rest
    end = len(name) - len(last)
    place = len(first)
    if end < place or not _begins(name, 0, first) or not _begins(name, end, last):
        return False
    for part in middle:
        found = _find(name, part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True


def fits_any(patterns: Iterable[str], name: str) -> bool:
    """Tell whether a name is one that any of the patterns means."""
    return any(fits(pattern, name) for pattern in patterns)


def _find(name: str, part: str, start: int, end: int) -> int:
    """Return where a part without `*` is in a piece of the name, -1 if nowhere."""
    if "?" not in part:
        return name.find(part, start, end)
    places = range(start, end - len(part) + 1)
    return next((at for at in places if _begins(name, at, part)), -1)


def _begins(name: str, at: int, part: str) -> bool:
    """Tell whether a part without `*` is there, in the name."""
    found = name[at : at + len(part)]
    if "?" not in part:
        return found == part
    return len(found) == len(part) and all(p in ("?", c) for p, c in zip(part, found, strict=True))
