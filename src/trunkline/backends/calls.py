"""Calls: those under way at one server, and whom what it says about them is for.

    on a stream of its own ──> Hearing ──> the client of that call, which alone has to wait
    where all comes the same way ──> Calls.post ──> the client it is about, which nobody waits for

Refuses to guess: a question or a message that could be several clients' is nobody's.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from trunkline.gateway.client import Asker, Client
from trunkline.jsonrpc import Due, Id, Notification, Raw, RemoteProtocolError, Request
from trunkline.mcp.meta import Params, peek


class Wish(NamedTuple):
    """That a client wants to hear of progress: our own token for that, and the client's."""

    number: int
    token: Id


class Calls:
    """All calls under way."""

    def __init__(self) -> None:
        self._waiting: dict[Due, tuple[Client, bool]] = {}
        """By what is waited for: whose they are, and whether servers ask in the course of such."""
        self._over = self._waiting.__delitem__
        self._wishes: dict[int, tuple[Client, Id]] = {}
        """Who wants to hear of progress, and under which token, by our own."""
        self._questions: dict[int, tuple[object, float]] = {}
        """What was asked in their course and is not answered: whom, and when."""
        self._last = 0

    def wish(self, params: Params) -> Wish | None:
        """Return whether the client of a call wants to hear of progress; it gets our own token."""
        token = params.progress_token
        if token is None:
            return None
        self._last = number = self._last + 1
        params.put_meta("progressToken", number)
        return Wish(number, token)

    def add(
        self, answer: Due, client: Client, may_ask: bool = True, wish: Wish | None = None
    ) -> Due:
        """Note a call that is under way; it is forgotten when it is answered.

        `may_ask` says whether it is one in whose course servers ask.
        """
        self._waiting[answer] = client, may_ask
        if wish is not None:
            self._wishes[wish.number] = client, wish.token
            answer.then(partial(self._forget, wish.number))
        answer.then(self._over)
        return answer

    def _forget(self, number: int, _: Due) -> None:
        del self._wishes[number]

    def only_client(self) -> Client | None:
        """Return whose calls these are, if they are all one conversation's."""
        return _only(client for client, _ in self._waiting.values())

    def whom_to_ask(self) -> Client | None:
        """Return whose calls a question must be about: those of who can be asked come first."""
        clients = self._askable()
        return _only(c for c in clients if c.caller.askable) or _only(clients)

    @property
    def crowded(self) -> bool:
        """Tell whether a question may be about calls of several conversations."""
        return len({client.party for client in self._askable()}) > 1

    def _askable(self) -> list[Client]:
        """Return whose calls a question may be about; if there are no such calls, all."""
        waiting = self._waiting.values()
        return [client for client, may_ask in waiting if may_ask] or [each for each, _ in waiting]

    async def ask(
        self, client: Client, method: str, params: Any, asker: Asker | None = None
    ) -> Raw:
        """Ask a client in the course of its call; raises RpcError if it refuses or cannot."""
        self._last += 1
        number = self._last
        self._questions[number] = client.party, asyncio.get_running_loop().time()
        try:
            return await client.ask(method, params, asker)
        finally:
            del self._questions[number]

    def waits_since(self, client: Client) -> float | None:
        """Return when a client was last asked what it has not answered; None if it owes nothing."""
        whom = client.party
        return max((at for party, at in self._questions.values() if party is whom), default=None)

    def recipient(
        self, notification: Notification, client: Client | None
    ) -> tuple[Client, Any] | None:
        """Return whom a notification is for, and what to tell them, if it is for one client.

        `client` is the one in the course of whose call it came, if that is known.
        """
        if notification.method == "notifications/progress":
            return self._progress(notification)
        if notification.method == "notifications/message" and client is not None:
            return client, notification.params
        return None

    def post(self, notification: Notification) -> bool:
        """Have the client told that it is for; tell whether there is one.

        Nothing that comes after it waits for a slow client. The answers of that client's own calls
        wait until it is being told: what was said first comes first.
        """
        told = self.recipient(notification, self.only_client())
        if told is None:
            return False
        client, params = told
        telling = client.post(notification.method, params)
        if telling is not None:
            self._hold_back(client, telling.get_loop())
        return True

    def _hold_back(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        # Until it is being told, which is soon, and not until it has taken it in, which it may
        # never do: from then on what it is answered stands behind that in its own line.
        for answer, (whose, _) in self._waiting.items():
            if whose is client:
                answer.hold()
                loop.call_soon(answer.release)

    def _progress(self, notification: Notification) -> tuple[Client, Any] | None:
        params = Params(notification.params)
        raw = params.get("progressToken")
        token = None if raw is None else peek(raw)
        wished = self._wishes.get(token) if type(token) is int else None
        if wished is None:
            return None  # late, or nobody's
        client, theirs = wished
        params.put("progressToken", theirs)
        return client, params.encode()


def _only(clients: Iterable[Client]) -> Client | None:
    found = {client.party: client for client in clients}
    return next(iter(found.values())) if len(found) == 1 else None


class Server(Protocol):
    """A server that is heard."""

    def called_by(self, request: Request, client: Client | None) -> Any:
        """Answer what it asks of a client, or of nobody in particular."""
        ...

    def take_note(self, notification: Notification) -> Awaitable[None] | None:
        """Take note of what it tells nobody in particular."""
        ...

    def violated(self, violation: RemoteProtocolError) -> None:
        """Learn that it broke the rules."""
        ...


class Hearing(Struct, frozen=True):
    """Hears what a server says in the course of one call, where the transport can tell."""

    server: Server
    calls: Calls
    client: Client

    def called(self, request: Request) -> Any:
        """Have the client of this call answer."""
        return self.server.called_by(request, self.client)

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Tell the client of this call, and wait while it is behind: only this call does."""
        told = self.calls.recipient(notification, self.client)
        if told is None:
            return self.server.take_note(notification)
        client, params = told
        return client.tell(notification.method, params)

    def violated(self, violation: RemoteProtocolError) -> None:
        """Pass it on."""
        self.server.violated(violation)
