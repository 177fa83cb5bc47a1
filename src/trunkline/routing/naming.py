"""Names of features, and patterns that match them.

    backend "fs", prefix "fs", tool "read_file"     ──> fs__read_file
    prefix ""                                       ──> read_file
    tool "Lies, Dateien!"                           ──> fs__Lies__Dateien__4f2a90c1
    a name of 90 characters                         ──> its first 55, "_", and eight of its hash

All model providers accept names of up to 64 characters of `A-Za-z0-9_-`. Some accept no others.

    github__*        a pattern: `*` for any characters, `?` for one; letter case counts
    fs:///{path}     a URI template (RFC 6570), of which only the literals are matched

Rules upheld here:
1. A public name depends only on its backend's prefix and the tool's name. It stays the same when
   other backends come and go.
2. Two names of one backend never become equal: a changed or shortened name carries a hash of the
   original.
3. Matching is never slow. There are no regular expressions; each literal is searched for once.
"""

import re
from collections.abc import Iterable
from hashlib import sha256

MAX_PUBLIC_NAME_LENGTH = 64
NAME_SEPARATOR = "__"

_INVALID_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")
_HASH_LENGTH = 8


def public_name(prefix: str, name: str) -> str:
    """Return the public name of the feature `name`."""
    whole = f"{prefix}{NAME_SEPARATOR}{name}" if prefix else name
    plain = _INVALID_CHARACTER.sub("_", whole)
    if plain == whole and 0 < len(whole) <= MAX_PUBLIC_NAME_LENGTH:
        return whole
    digest = sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{plain[: MAX_PUBLIC_NAME_LENGTH - _HASH_LENGTH - 1]}_{digest}"


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a pattern matches the whole of a name."""
    first, *rest = pattern.split("*")
    if not rest:
        return len(name) == len(first) and _part_matches_at(name, 0, first)
    *middle, last = rest
    end = len(name) - len(last)
    place = len(first)
    if end < place or not _part_matches_at(name, 0, first) or not _part_matches_at(name, end, last):
        return False
    for part in middle:
        found = _find_part(name, part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True


def matches_any_pattern(patterns: Iterable[str], name: str) -> bool:
    """Return whether any of the patterns matches the whole of a name."""
    return any(matches_pattern(pattern, name) for pattern in patterns)


def _find_part(name: str, part: str, start: int, end: int) -> int:
    if "?" not in part:
        return name.find(part, start, end)
    places = range(start, end - len(part) + 1)
    return next((at for at in places if _part_matches_at(name, at, part)), -1)


def _part_matches_at(name: str, place: int, part: str) -> bool:
    """Return whether a part without `*` matches the name at a position."""
    found = name[place : place + len(part)]
    if "?" not in part:
        return found == part
    return len(found) == len(part) and all(p in ("?", c) for p, c in zip(part, found, strict=True))


def matches_template(template: str, uri: str) -> bool:
    """Return whether a template's literals occur in `uri` in order, the outer ones at its ends."""
    first, *rest = template_literals(template)
    if not rest:
        return uri == first
    *middle, last = rest
    if not uri.startswith(first) or not uri.endswith(last):
        return False
    place, end = len(first), len(uri) - len(last)
    for literal in middle:
        found = uri.find(literal, place, max(end, 0))
        if found < 0:
            return False
        place = found + len(literal)
    return place <= end


def template_literals(template: str) -> list[str]:
    """Return the literals before, between and after the expressions of a template.

    An unclosed brace is part of a literal.
    """
    parts: list[str] = []
    start = 0
    literal = ""
    while (opened := template.find("{", start)) >= 0:
        closed = template.find("}", opened)
        if closed < 0:
            break
        parts.append(literal + template[start:opened])
        literal, start = "", closed + 1
    return [*parts, literal + template[start:]]


def template_specificity(template: str) -> int:
    """Return the length of a template's literals. Of two matching templates, the longer wins."""
    return sum(map(len, template_literals(template)))


# Spellings of URIs

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_ESCAPED_UNRESERVED = re.compile(r"%(?:[46][1-9a-fA-F]|[57][0-9aA]|3[0-9]|2[dDeE]|5[fF]|7[eE])")
_SEPARATORS = re.compile(r"[/\\]")
# The gateway's own prefix, of a URI that two servers list, is no part of the URI.
_URI_PARTS = re.compile(r"(?:trunkline:[\w-]+:)?([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^?#]*)")
_SCHEMES_WITH_HOST = frozenset(("http", "https", "file", "ftp", "ws", "wss"))


def find_ambiguity(uri: str) -> str | None:
    """Return why a server could read a URI as another one than a pattern matches, if it could.

    The path is what counts: a query means what the server says.
    """
    found = _URI_PARTS.match(uri)
    scheme, host, path = ("", "", uri) if found is None else (found[1], found[2] or "", found[3])
    # Decoded twice, because some servers decode a decoded URI again.
    segments = _SEPARATORS.split(_unescape(_unescape(f"{host}/{path}")))
    is_file = scheme.lower() == "file"
    if "." in segments or ".." in segments:
        return "it has a segment . or .. in its path"
    if "\\" in uri or "%5c" in uri.lower():
        return "it has a backslash"
    if _ESCAPED_UNRESERVED.search(host + path):
        return "it escapes characters that need no escape"
    if is_file and ("//" in path or "%2f" in path.lower()):
        return "it has two slashes together, or an escaped slash"
    if scheme != scheme.lower():
        return "its scheme has capital letters"
    if scheme in _SCHEMES_WITH_HOST and host != host.lower():
        return "its host has capital letters"
    return None


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
