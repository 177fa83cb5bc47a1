"""Answers of the HTTP door: which status says what, and how much may be asked at once.

Refuses to know eras: those who do pass in the status that an error has in theirs.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from trunkline.jsonrpc import (
    Channel,
    Due,
    ErrorResponse,
    Id,
    Notification,
    Request,
    RpcError,
)
from trunkline.jsonrpc.incident import Report, answer_for
from trunkline.jsonrpc.message import response_pieces
from trunkline.mcp.meta import Params
from trunkline.mcp.mirrors import Mirrors
from trunkline.mcp.principal import Principal
from trunkline.transports.exchange import PLAIN, Exchange, Fields, Pieces

if TYPE_CHECKING:
    from trunkline.transports.http_session import HttpSession

JSON = (b"content-type", b"application/json")
LATER = (b"retry-after", b"1")

LARGE = 64 * 1024
"""From how many bytes on a result is not copied to be answered with."""

TOO_MANY = 429
OVERLOADED = 503

LAST_WORD = 1.0
"""How long, in seconds, clients have to take in a last word when the door closes."""


class Conversation(Protocol):
    """One conversation of the handshake era, as the gateway has it."""

    @property
    def version(self) -> str | None:
        """The revision that was agreed on, None before that."""
        ...

    def recognise(self, principal: Principal) -> None:
        """Learn what its owner may be taken for by now."""
        ...

    def answer(self, request: Request, line: Any, params: Params | None = None) -> Any:
        """Answer a request, or return what to await; `line` is for all that concerns it.

        Its params need not be read again where they are given.
        """
        ...

    def notified(self, notification: Notification) -> None:
        """Take note."""
        ...


class Host(Protocol):
    """What the door leads to."""

    def readiness(self) -> dict[str, Any]:
        """Return whether it can be used, as `status`, and what is to be known beside that."""
        ...

    def open(self, trunk: Any, principal: Principal) -> Conversation:
        """Begin a conversation of the handshake era."""
        ...

    async def close(self, conversation: Any) -> None:
        """End one."""
        ...

    def answer(
        self, request: Request, params: Params, principal: Principal, line: Any, mirrors: Mirrors
    ) -> Any:
        """Answer a request of the envelope era, or return what to await."""
        ...

    def refused(self, request: Request, principal: Principal, why: RpcError) -> None:
        """Take note of a request of the envelope era whose params cannot be read."""
        ...

    async def serve(self, channel: Channel, principal: Principal) -> None:
        """Serve whoever is at the other end of a channel, to its end."""
        ...


class Verdict(Struct, eq=False):
    """What is known of requests when their head, which many have, has been looked at."""

    headers: Fields
    """Those that any answer gets."""
    terms: object = None
    """By which it was judged; there may be others by now."""
    refusal: tuple[int, str] | None = None
    posts: bool = False
    """Whether it brings a message of MCP."""
    modern: bool = False
    """Whether it names a revision of the envelope era, or one that nobody knows."""
    session: "HttpSession | None" = None
    """The session that it names, as it was when one of them was last looked up."""
    mirrors: Mirrors | None = None
    """Its headers, once one of them has come that stands alone."""
    json: Fields = ()
    """The headers of an answer in JSON."""

    def __post_init__(self) -> None:
        self.json = (JSON, *self.headers)


class Visit(Struct, frozen=True, gc=False):
    """An exchange that was let in: whose it is, and what is known of its head."""

    exchange: Exchange
    principal: Principal
    verdict: Verdict

    @property
    def headers(self) -> Fields:
        """The headers that any answer gets."""
        return self.verdict.headers

    def say(self, status: int, why: str, *headers: tuple[bytes, bytes]) -> None:
        """Answer in plain words."""
        self.exchange.respond(status, (PLAIN, *headers, *self.headers), why.encode() + b"\n")

    def fail(
        self, status: int, error: RpcError, id: Id = None, *headers: tuple[bytes, bytes]
    ) -> None:
        """Answer with an error of JSON-RPC."""
        payload = ErrorResponse(id, error).encode()
        self.exchange.respond(status, (JSON, *headers, *self.headers), payload)

    def respond(self, status: int, payload: bytes, rest: Pieces = ()) -> None:
        """Answer with a payload, which may come in several pieces."""
        self.exchange.respond(status, self.verdict.json, payload, rest)

    def accept(self) -> None:
        """Say that something was taken in, and that there is nothing to say about it."""
        self.exchange.respond(202, self.headers)


class Load:
    """What is in flight, in all and of each principal, by its id.

    While there is less than any one may have, nobody counts whose it is.
    """

    def __init__(self, max_all: int, max_each: int) -> None:
        self._owners: dict[object, str] = {}
        """Whose is what is in flight."""
        self._each: Counter[str] | None = None
        """How much everybody has, where that is counted."""
        self._ample = 0
        """With fewer there is room for everybody; where each is counted, there are none."""
        self.adopt(max_all, max_each)

    def adopt(self, max_all: int, max_each: int) -> None:
        """Have other limits from now on; what is in flight stays."""
        self._max_all, self._max_each = max_all, max_each
        self._enough = min(max_all, max_each)
        if self._each is None:
            self._ample = self._enough

    def refuses(self, owner: str) -> int | None:
        """Return the status for one request too many, None where there is room."""
        count = len(self._owners)
        if count >= self._max_all:
            return OVERLOADED
        if count < self._max_each:
            return None
        if self._each is None:
            self._each = Counter(self._owners.values())
            self._ample = 0
        return TOO_MANY if self._each[owner] >= self._max_each else None

    def enter(self, owner: str, call: object) -> int | None:
        """Count a call in; return the status for one too many, which is not counted."""
        owners = self._owners
        if len(owners) >= self._ample:
            refused = self.refuses(owner)
            if refused is not None:
                return refused
            if self._each is not None:
                self._each[owner] += 1
        owners[call] = owner
        return None

    def leave(self, call: object) -> None:
        """Count a call out."""
        owner = self._owners.pop(call)
        if self._each is not None:
            self._each[owner] -= 1
            if not self._each[owner]:
                del self._each[owner]
            if len(self._owners) < self._enough // 2:  # not at the first: it might come back
                self._each, self._ample = None, self._enough


def later(error: RpcError) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header that says when to try again, for an error that does."""
    data = error.data
    seconds = cast("dict[str, object]", data).get("retryAfter") if isinstance(data, dict) else None
    if not isinstance(seconds, int | float):
        return ()
    return ((b"retry-after", b"%d" % max(1, math.ceil(seconds))),)


def pieces_of(request: Request, outcome: Any, report: Report) -> tuple[bytes, Pieces]:
    """Return the answer that an outcome makes, and the rest of it if it is large.

    Then the result is there as it is: to copy it would take longer than all else. An outcome that
    is not JSON is an incident.
    """
    try:
        return response_pieces(request.id, outcome, LARGE)
    except Exception as why:
        return ErrorResponse(request.id, answer_for(why, request.method, report)).encode(), ()


def payload_of(request: Request, outcome: Any, report: Report) -> bytes:
    """Return the same in one piece."""
    payload, rest = pieces_of(request, outcome, report)
    return b"".join((payload, *rest)) if rest else payload


async def end_all(calls: Collection[Due], tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait for calls that are about to end, then for tasks; those who do not are stopped.

    `tasks` is looked at when the calls have ended: these may leave something to be done.
    """
    if calls:
        ending = asyncio.gather(*(call.wait() for call in calls))
        await asyncio.wait({ending}, timeout=LAST_WORD)
        ending.cancel()
        for call in list(calls):
            call.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    if tasks:
        await asyncio.wait(tasks, timeout=LAST_WORD)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
