"""Asked: one call on its way over Streamable HTTP, and whom what comes of it is for.

    the wire ──complete──> JSON, all of it, as nearly always ──> its result, or its error
             ──begin─────> anything else ──> HttpResponse ──> as soon as its head is there

Refuses to wait, and to know what follows: that is up to the link.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from msgspec import Struct

from trunkline.jsonrpc import ConnectionLost, Due, Handler, Raw, RpcError
from trunkline.jsonrpc.codec import read_result
from trunkline.transports.exchange import Headers
from trunkline.transports.http_refused import SessionLost
from trunkline.transports.http_response import Head, HttpResponse
from trunkline.transports.http_results import result_in

if TYPE_CHECKING:
    from trunkline.transports.http_wire import Wire
    from trunkline.transports.streamable import Streamable

Anew: TypeAlias = Callable[[SessionLost], Coroutine[Any, Any, Raw]]
"""Asks in another session what was asked in one that the server has lost."""

INITIALIZE = "initialize"
LISTEN = "subscriptions/listen"


class Asked(Struct, eq=False):
    """A call on its way; a Poster."""

    link: "Streamable"
    id: int
    method: str
    handler: Handler | None
    headers: Headers
    """What is said with it."""
    anew: Anew | None
    answer: Due = cast("Due", None)
    """What is due; put here at once, but afterwards, since the two refer to each other."""
    shown: object = None
    """The credentials that were shown, if there are others to be had."""
    payload: bytes = b""
    """What can be posted again, with those."""

    @property
    def begins(self) -> bool:
        """Tell whether it begins a session, and so belongs to none."""
        return self.method == INITIALIZE

    @property
    def counts(self) -> bool:
        """Tell whether it is work: to listen is none, and never done."""
        return self.method != LISTEN

    @property
    def in_session(self) -> bool:
        """Tell whether it was asked in a session."""
        return any(name == b"mcp-session-id" for name, _ in self.headers)

    def showed(self, shown: object, body: bytes) -> None:
        """Take note of the credentials."""
        self.shown, self.payload = shown, body

    def stop(self, _: Due) -> None:
        """Let nobody answer it any more, of which nothing was heard."""
        self.link.drop(self)

    def complete(self, wire: "Wire", head: Head, body: bytes) -> None:
        """Take in all of an answer."""
        if head.is_json:
            self.link.remapper.forget(self.id)
            found = read_result(body)
            if found is not None and found.id == self.id:
                self.answer.settle(found.result)
            else:
                self._look_closely(body)
        else:
            self.begin(wire).complete(wire, head, body)

    def _look_closely(self, body: bytes) -> None:
        try:
            result = result_in(body, self.id)
        except (RpcError, ConnectionLost) as why:
            self.answer.fail(why)
        else:
            self.answer.settle(result)

    def begin(self, wire: "Wire") -> HttpResponse:
        """Have the link told when the head is there, or that there is none."""
        response = HttpResponse(wire)
        response.watch(partial(self.link.begun, self, response))
        self.link.expect(self)
        self.answer.stop_by(partial(self._stop_beginning, response))
        return response

    def _stop_beginning(self, response: HttpResponse, _: Due) -> None:
        response.watch(None)
        response.close()
        self.link.drop(self)
