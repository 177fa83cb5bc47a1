"""Media types: what a client accepts, and what a body is said to be.

Refuses to complain: a header that makes no sense accepts nothing, and names no type.
"""

import re
from functools import lru_cache

# What stands between two commas, or two semicolons; those within quotes do not count.
_item = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL).findall
_part = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL).findall

_type = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_zero = re.compile(r"0(?:\.0*)?").fullmatch


def accepts(accept: bytes | None, media: str) -> bool:
    """Tell whether an Accept header lets a body of type `media` (in lower case) be sent.

    Of the ranges that fit, the closest decide: "*/*, text/html;q=0" accepts all but that one.
    Parameters other than `q` are not looked at. A request without the header accepts everything.
    """
    if accept is None:
        return True
    fitting = {media: 3, f"{media.partition('/')[0]}/*": 2, "*/*": 1, "*": 1}
    closest, accepted = 0, False
    for item in _item(accept.decode("latin-1").lower()):
        found, parameters = _read(item)
        closeness = fitting.get(found, 0)
        if closeness > closest or (closeness == closest > 0 and not accepted):
            closest = closeness
            accepted = not any(key == "q" and _zero(value) for key, value in parameters)
    return accepted


@lru_cache(64)
def media_type(content_type: bytes | None) -> str:
    """Return the type that a Content-Type header names, in lower case; "" if it names none."""
    found = _read((content_type or b"").decode("latin-1").lower())[0]
    return found if _type(found) else ""


def is_json(content_type: bytes | None) -> bool:
    """Tell whether a Content-Type header says that a body is JSON in UTF-8."""
    return media_type(content_type) == "application/json" and is_utf8(content_type)


def is_utf8(content_type: bytes | None) -> bool:
    """Tell whether a Content-Type header leaves the charset open, or says that it is UTF-8."""
    parameters = _read((content_type or b"").decode("latin-1").lower())[1]
    return all(value in {"utf-8", "utf8"} for key, value in parameters if key == "charset")


def _read(item: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what stands before the first semicolon, and the parameters behind it."""
    kind, _, rest = item.partition(";")
    parameters = [part.partition("=") for part in _part(rest)]
    return kind.strip(), [(key.strip(), value.strip(' \t"')) for key, _, value in parameters]
