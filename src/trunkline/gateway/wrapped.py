"""Wrapped: the call of a tool that comes as the arguments of `call_tool`.

    {"name": "search__call_tool", "arguments": {"name": "fs__read", "arguments": {…}}, "_meta": …}
    ──unwrap──>  {"name": "fs__read", "arguments": {…}, "_meta": …}

Only `name` and `arguments` change places: the progress token, the envelope, the answers to
questions, and the id under which it can be cancelled are those of the call itself.

Refuses what is wrapped twice: whoever judges a call by its name judges the tool that is called.
"""

from trunkline.jsonrpc import Raw, RpcError, members
from trunkline.jsonrpc.raw import first_byte
from trunkline.mcp.meta import Params

_BRACE = ord("{")
_KNOWN = frozenset(("name", "arguments"))


def unwrap(params: Params) -> tuple[str, Raw]:
    """Return the name and the arguments of the call inside; raises Invalid params."""
    given = params.get("arguments") or Raw(b"{}")
    inside = Params(given)
    name = inside.text("name")
    foreign = members(given).keys() - _KNOWN
    if foreign:
        field = min(foreign)
        why = f"unexpected {field!r}; what is for the tool belongs into 'arguments'"
        raise RpcError.invalid_params(why, {"field": field})
    arguments = inside.get("arguments")
    if arguments is None or bytes(arguments) == b"null":
        return name, Raw(b"{}")
    if first_byte(arguments) != _BRACE:
        raise RpcError.invalid_params("expected an object as 'arguments'", {"field": "arguments"})
    return name, arguments
