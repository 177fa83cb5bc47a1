"""Call: what a client asks of a backend, on its way, and how it is called back."""

from msgspec import Struct

from trunkline.jsonrpc import Id, Notification, Raw
from trunkline.mcp.caller import Caller


class Call(Struct, frozen=True):
    """Who asks, what, of whom: `params` are those that the backend gets, native names and all."""

    caller: Caller
    id: Id
    method: str
    params: Raw
    backend: str


def withdrawal(id: int) -> Notification:
    """Tell the side that was asked that nobody waits for its answer any more."""
    return Notification("notifications/cancelled", {"requestId": id, "reason": "cancelled"})
