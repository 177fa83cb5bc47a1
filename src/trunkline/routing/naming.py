"""Names under which the gateway offers what its backends offer.

    backend "fs", prefix "fs", tool "read_file"     ──> fs__read_file
    prefix ""                                       ──> read_file
    tool "Lies, Dateien!"                           ──> fs__Lies__Dateien__4f2a90c1
    a name of 90 characters                         ──> its first 55, "_", and eight of its hash

Every model provider takes names of up to 64 characters of `A-Za-z0-9_-`, and some take no others.

Rules upheld here:
1. A name depends on its own backend's prefix and the tool's name alone: it stays the same whatever
   else comes and goes.
2. Two different names of one backend never become one: where characters had to change or go, a hash
   of the whole original tells them apart.
"""

import re
from hashlib import sha256

MAX_NAME = 64
SEPARATOR = "__"

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_HASH = 8


def public_name(prefix: str, name: str) -> str:
    """Return the name under which `name` is offered."""
    whole = f"{prefix}{SEPARATOR}{name}" if prefix else name
    plain = _FOREIGN.sub("_", whole)
    if plain == whole and 0 < len(whole) <= MAX_NAME:
        return whole
    digest = sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    return f"{plain[: MAX_NAME - _HASH - 1]}_{digest}"
