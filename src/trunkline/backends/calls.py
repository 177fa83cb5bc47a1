"""Calls: those under way at one server, and whom what it says about them is for.

Refuses to guess: a question or a message that could be several clients' is nobody's.
"""

from typing import NamedTuple

from trunkline.gateway.client import Client
from trunkline.jsonrpc import Id, Notification, Raw
from trunkline.mcp.meta import Params, peek


class Waiting(NamedTuple):
    """A client that waits for a call, and the token under which it wants to hear of progress."""

    client: Client
    token: Id


class Calls:
    """All calls under way."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._last = 0

    @property
    def next_number(self) -> int:
        """The number that the next call gets: our own token for its progress."""
        return self._last + 1

    def begin(self, client: Client, token: Id) -> int:
        """Note a call, and under which token its client wants to hear of progress, if at all."""
        self._last += 1
        self._waiting[self._last] = Waiting(client, token)
        return self._last

    def end(self, number: int) -> None:
        """Forget a call."""
        del self._waiting[number]

    def only_client(self) -> Client | None:
        """Return whose calls these are, if they are all one conversation's."""
        clients = {waiting.client.party: waiting.client for waiting in self._waiting.values()}
        return next(iter(clients.values())) if len(clients) == 1 else None

    @property
    def crowded(self) -> bool:
        """Tell whether several conversations have calls under way."""
        return len({waiting.client.party for waiting in self._waiting.values()}) > 1

    def progress(self, notification: Notification) -> tuple[Client, Raw] | None:
        """Return whom progress is for, and the same under that client's own token."""
        params = Params(notification.params)
        raw = params.get("progressToken")
        token = None if raw is None else peek(raw)
        waiting = self._waiting.get(token) if type(token) is int else None
        if waiting is None or waiting.token is None:
            return None  # late, or nobody's
        params.put("progressToken", waiting.token)
        return waiting.client, params.encode()
