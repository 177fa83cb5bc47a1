"""Annotations: what a tool's server says about what the tool does, with what counts if it does not.

Refuses to believe them: they are the server's word, and whoever decides by them trusts that server.
What is not a truth value counts as not said.
"""

from collections.abc import Mapping
from typing import cast

from msgspec import Struct

from trunkline.jsonrpc import Raw, from_raw

HINTS: Mapping[str, bool] = {
    "readOnlyHint": False,
    "destructiveHint": True,
    "idempotentHint": False,
    "openWorldHint": True,
}
"""The hints that MCP knows, and what each is taken for where a server does not say: the worse."""


class _Annotated(Struct):
    annotations: object = None


def read_hints(definition: Raw) -> dict[str, bool]:
    """Return all hints of a tool; one that only reads destroys nothing, unless it says it does."""
    try:
        found = from_raw(definition, _Annotated).annotations
    except ValueError:  # not an object; nobody lists such a thing, but somebody may ask
        found = None
    said = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    hints = dict(HINTS)
    if said.get("readOnlyHint") is True:
        hints["destructiveHint"] = False
    hints.update({name: value for name in HINTS if isinstance(value := said.get(name), bool)})
    return hints
