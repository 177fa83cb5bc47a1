"""Media types: what a client accepts, and what a body is declared to be.

Malformed headers never raise: they accept nothing and name no type.
"""

import re
from functools import lru_cache

# Items between commas, and parameters between semicolons. Quoted separators do not count.
_list_items = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL).findall
_parameter_parts = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL).findall

_is_media_type = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_is_zero = re.compile(r"0(?:\.0*)?").fullmatch


def accepts(accept: bytes | None, media: str) -> bool:
    """Return whether an Accept header allows a body of type `media` (in lower case).

    The most specific matching range decides: "*/*, text/html;q=0" accepts everything but HTML.
    Parameters other than `q` are ignored. A request without the header accepts everything.
    """
    if accept is None:
        return True
    ranges = {media: 3, f"{media.partition('/')[0]}/*": 2, "*/*": 1, "*": 1}
    best_specificity, accepted = 0, False
    for item in _list_items(accept.decode("latin-1").lower()):
        found, parameters = _split_parameters(item)
        specificity = ranges.get(found, 0)
        if specificity > best_specificity or (specificity == best_specificity > 0 and not accepted):
            best_specificity = specificity
            accepted = not any(key == "q" and _is_zero(value) for key, value in parameters)
    return accepted


@lru_cache(64)
def media_type(content_type: bytes | None) -> str:
    """Return the media type of a Content-Type header in lower case, or "" if it is malformed."""
    found = _split_parameters((content_type or b"").decode("latin-1").lower())[0]
    return found if _is_media_type(found) else ""


def is_json(content_type: bytes | None) -> bool:
    """Return whether a Content-Type header means JSON in UTF-8."""
    return media_type(content_type) == "application/json" and is_utf8(content_type)


def is_utf8(content_type: bytes | None) -> bool:
    """Return whether a Content-Type header has no charset, or UTF-8."""
    parameters = _split_parameters((content_type or b"").decode("latin-1").lower())[1]
    return all(value in {"utf-8", "utf8"} for key, value in parameters if key == "charset")


def _split_parameters(item: str) -> tuple[str, list[tuple[str, str]]]:
    """Split a header item into its value and its parameters."""
    kind, _, rest = item.partition(";")
    parameters = [part.partition("=") for part in _parameter_parts(rest)]
    return kind.strip(), [(key.strip(), value.strip(' \t"')) for key, _, value in parameters]
