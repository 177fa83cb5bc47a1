"""Call: what a client asks of a backend, on its way, and how it is called back."""

from msgspec import Struct

from trunkline.jsonrpc import Id, Notification
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params


class Call(Struct, frozen=True):
    """Who asks what: `params` are those that the backend gets, native names and all.

    They were read once, by whoever found out where the call goes, and whoever carries it out has
    them to itself: it edits them where it must, and writes them once.
    """

    caller: Caller
    id: Id
    method: str
    params: Params


def withdrawal(id: int) -> Notification:
    """Tell the side that was asked that nobody waits for its answer any more."""
    return Notification("notifications/cancelled", {"requestId": id, "reason": "cancelled"})
