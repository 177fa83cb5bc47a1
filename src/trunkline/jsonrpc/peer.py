"""Peer: one end of a conversation, and the only book of who owes whom an answer.

    receive(payload) ──> events: Called, Notified, Returned, Failed, Violated
    call, notify, answer, fail ──> payloads, collected by outgoing()
    end_input, close ──> Lost, once for every call that will have no answer

Refuses to have a role, a clock, a task or a socket: all that happens, happens in its methods.
A batch is undone here, so that nobody above ever handles one: each entry is an event of its own,
and the answers are put together again when the last of them is there.

Rules upheld here:
1. A request is answered at most once, under its own id.
2. A call is retired exactly once: Returned, Failed, Lost, or forgotten by the one who made it.
3. Idle means that nothing is owed, either way.
4. A closed peer is silent: it sends nothing, and learns nothing.
5. Answers of a batch go out together, in the order of its entries, without those not owed.
"""

from collections import deque
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from trunkline.jsonrpc.codec import MAX_BATCH, MAX_PAYLOAD, decode, read_result
from trunkline.jsonrpc.errors import (
    OVERLOADED,
    LocalProtocolError,
    MalformedAnswer,
    RemoteProtocolError,
    RpcError,
)
from trunkline.jsonrpc.message import (
    Batch,
    ErrorResponse,
    Id,
    Message,
    Notification,
    Request,
    Response,
    join,
    request_payload,
)
from trunkline.jsonrpc.raw import UNSET, Raw
from trunkline.jsonrpc.remap import IdRemapper

BatchPolicy: TypeAlias = Literal["reject", "allow"]

MAX_FORGOTTEN = 1024
"""How many forgotten calls are remembered, so that a late answer is not taken for a violation."""

_NOBODY: tuple[Id, str] = (None, "")
"""Whose a call is that the remapper does not know: somebody else has had it forgotten."""

MAX_IN_FLIGHT = 1024
"""The default limit of requests that wait for our answer."""


class Called(Struct, frozen=True, gc=False, eq=False):
    """The other side asks; `answer` or `fail` with this event settles it."""

    request: Request


class Notified(Struct, frozen=True, gc=False):
    """The other side tells."""

    notification: Notification


class Returned(Struct, frozen=True, gc=False):
    """A call of ours has its result."""

    id: int
    original_id: Id
    result: Raw
    token: Any = None


class Failed(Struct, frozen=True, gc=False):
    """A call of ours has an error for an answer, or an answer that is none."""

    id: int
    original_id: Id
    error: RpcError
    token: Any = None


class Lost(Struct, frozen=True, gc=False):
    """A call of ours will not be answered any more."""

    id: int
    original_id: Id
    token: Any = None


class Violated(Struct, frozen=True, gc=False):
    """The other side broke the rules; it has been told so where that is allowed."""

    violation: RemoteProtocolError


Event: TypeAlias = Called | Notified | Returned | Failed | Lost | Violated


class Peer:
    """One pure end: payloads in, events out; answers in, payloads out."""

    def __init__(
        self,
        name: str = "",
        remapper: IdRemapper | None = None,
        *,
        batch: BatchPolicy = "reject",
        max_in_flight: int = MAX_IN_FLIGHT,
        max_payload: int = MAX_PAYLOAD,
        max_batch: int = MAX_BATCH,
        answer_violations: bool = True,
    ) -> None:
        """Begin a conversation.

        `name` is what the remapper knows the other side by. A remapper may be shared by many peers.
        Without `answer_violations` garbage is reported, but the other side is not told so: wise
        towards programs that print on stdout what belongs on stderr.
        """
        self.batch: BatchPolicy = batch
        self.closed = False
        self.input_ended = False
        self._name = name
        self._remapper = remapper or IdRemapper()
        self._max_payload = max_payload
        self._max_batch = max_batch
        self._max_in_flight = max_in_flight
        self._answer_violations = answer_violations
        self._read: tuple[bytes, Message | Batch] | None = None
        """What has been read, and is still to be received."""
        self.calls: dict[int, Any] = {}
        """The calls of this side that have no answer yet, each with its token."""
        self._forgotten: deque[Id] = deque(maxlen=MAX_FORGOTTEN)
        self._owed: dict[Called, _Place | None] = {}
        self._ids_in_use: set[Id] = set()
        self.queue: deque[bytes] = deque()
        """What waits to be sent, in its order; `outgoing` takes it out."""

    # What the other side says

    def receive(self, payload: bytes | str) -> list[Event]:
        """Return what is learnt from one payload, in the order in which it was said."""
        if self.input_ended:
            return []
        read, self._read = self._read, None
        try:
            if read is not None and read[0] is payload:
                message = read[1]
            else:
                max_batch = self._max_batch if self.batch == "allow" else 0
                message = decode(payload, self._max_payload, max_batch)
        except RemoteProtocolError as violation:
            return self._take(violation, None)
        if not isinstance(message, Batch):
            return self._take(message, None)
        reply = _BatchReply(len(message.entries))
        return [
            event
            for index, entry in enumerate(message.entries)
            for event in self._take(entry, _Place(reply, index))
        ]

    def take_result(self, payload: bytes) -> tuple[Any, Raw] | None:
        """Return the token of the call that a payload answers, and its result.

        None if it is anything else: then nothing has been learnt. What a gateway reads most, with
        fewest steps.
        """
        calls = self.calls
        found = read_result(payload, self._max_payload) if calls else None
        if found is None or (id := found.id) not in calls:
            return None
        self._remapper.forget(id)
        return calls.pop(id), found.result

    def take(self, payload: bytes) -> list[Event] | None:
        """Return what is learnt from a request or a response, None if it is anything else.

        Then nothing has been learnt, and it is still to be received.
        """
        if self.input_ended:
            return None
        try:
            message = decode(payload, self._max_payload, 0)
        except RemoteProtocolError:
            return None
        if isinstance(message, Response):
            return self._take_answer(message)
        if isinstance(message, Request):
            return self._take_request(message, None)
        self._read = payload, message  # which need not be read twice
        return None

    def accuse(self, violation: RemoteProtocolError) -> list[Event]:
        """Take note of what was so wrong that it never became a payload."""
        return [] if self.input_ended else self._take_violation(violation, None)

    def end_input(self) -> list[Lost]:
        """Take note that the other side will say no more; return the calls that are lost by it.

        What it asked before can still be answered.
        """
        self.input_ended = True
        calls, self.calls = self.calls, {}
        return [
            Lost(id, (self._remapper.restore(id) or _NOBODY)[0], calls[id]) for id in sorted(calls)
        ]

    def _take(self, entry: Message | RemoteProtocolError, place: "_Place | None") -> list[Event]:
        if isinstance(entry, Request):
            return self._take_request(entry, place)
        if isinstance(entry, RemoteProtocolError):
            return self._take_violation(entry, place)
        self._send(None, place)  # nothing else is answered
        if isinstance(entry, Notification):
            return [Notified(entry)]
        return self._take_answer(entry)

    def _take_request(self, request: Request, place: "_Place | None") -> list[Event]:
        id = request.id
        if id in self._ids_in_use:
            # Not under its own id: the caller would take that for the answer to its first request.
            error = RpcError.invalid_request(f"id {id!r} is in use already")
            answer = ErrorResponse(None, error).encode()
            return self._take_violation(RemoteProtocolError(error, answer), place)
        if len(self._owed) >= self._max_in_flight:
            error = RpcError(OVERLOADED, "Too many requests in flight")
            self._send(ErrorResponse(id, error).encode(), place)
            return []
        if id is not None:  # any number of requests may share null; nobody can tell them apart
            self._ids_in_use.add(id)
        called = Called(request)
        self._owed[called] = place
        return [called]

    def _take_answer(self, answer: Response | ErrorResponse) -> list[Event]:
        id: Any = answer.id  # an integer, or else that of no call
        try:
            token = self.calls.pop(id)
        except KeyError:
            return self._take_stray_answer(id)
        original_id, _ = self._remapper.restore(id) or _NOBODY
        if isinstance(answer, Response):
            return [Returned(id, original_id, answer.result, token)]
        return [Failed(id, original_id, answer.error, token)]

    def _take_stray_answer(self, id: Id) -> list[Event]:
        if id in self._forgotten:
            self._forgotten.remove(id)
            return []  # too late; the other side could not know
        error = RpcError.invalid_request(f"no call in flight has id {id!r}")
        return [Violated(RemoteProtocolError(error))]

    def _take_violation(
        self, violation: RemoteProtocolError, place: "_Place | None"
    ) -> list[Event]:
        id = violation.response_id
        awaited = id if isinstance(id, int) and id in self.calls else None
        answers = self._answer_violations and awaited is None
        self._send(violation.answer if answers else None, place)
        events: list[Event] = [Violated(violation)]
        if awaited is not None:
            error = MalformedAnswer.internal_error(f"the answer was malformed: {violation}")
            events += self._take_answer(ErrorResponse(awaited, error))
        return events

    # What this side says

    def call(
        self, method: str, params: Any = UNSET, original_id: Id = None, token: Any = None
    ) -> int:
        """Ask, on behalf of whoever knows the call as `original_id`; return the call's id.

        `token` is whatever is to come back with the outcome.
        """
        if self.input_ended:
            raise LocalProtocolError("expected an open conversation, got one that has ended")
        id = self._remapper.remap(original_id, self._name)
        try:
            payload = request_payload(id, method, params)
        except Exception:  # not only ours: what is to be written may have code of its own
            self._remapper.forget(id)
            raise
        self.calls[id] = token
        self.queue.append(payload)
        return id

    def notify(self, method: str, params: Any = UNSET) -> None:
        """Tell."""
        payload = Notification(method, params).encode()
        self._send(payload, None)

    def answer(self, called: Called, result: Any) -> None:
        """Answer a request with its result."""
        self._settle(called, Response(called.request.id, result).encode())

    def fail(self, called: Called, error: RpcError) -> None:
        """Answer a request with an error."""
        self._settle(called, ErrorResponse(called.request.id, error).encode())

    def abandon(self, called: Called) -> None:
        """Leave a request without an answer, as its caller wished."""
        self._settle(called, None)

    def forget(self, id: int) -> bool:
        """Retire a call whose answer no longer matters; tell whether it was still waited for."""
        if id not in self.calls:
            return False
        del self.calls[id]
        self._remapper.forget(id)
        self._forgotten.append(id)
        return True

    def close(self) -> list[Lost]:
        """End the conversation; return the calls that are lost by it."""
        lost = self.end_input()
        self.closed = True
        self._owed.clear()
        self._ids_in_use.clear()
        self._read = None
        self.queue.clear()
        return lost

    # What is to be done

    def outgoing(self) -> bytes | None:
        """Return the next payload to send, if there is one."""
        return self.queue.popleft() if self.queue else None

    def hold_back(self, payload: bytes) -> None:
        """Have a payload that could not be sent be the next again."""
        self.queue.appendleft(payload)

    @property
    def backlog(self) -> int:
        """Tell how many payloads wait to be sent."""
        return len(self.queue)

    @property
    def idle(self) -> bool:
        """Tell whether nothing is owed, either way."""
        return not self.calls and not self._owed

    def owes(self, called: Called) -> bool:
        """Tell whether a request still waits for this side's answer."""
        return called in self._owed

    def _settle(self, called: Called, payload: bytes | None) -> None:
        if self.closed:
            return
        if called not in self._owed:
            raise LocalProtocolError(
                f"expected a request that is owed an answer, got {called.request.id!r} again"
            )
        place = self._owed.pop(called)
        self._send(payload, place)
        # An id is in use until its answer leaves: in a batch, when the last one is there.
        if place is None:
            self._ids_in_use.discard(called.request.id)
        else:
            self._ids_in_use.difference_update(place.reply.settle(called.request.id))

    def _send(self, payload: bytes | None, place: "_Place | None") -> None:
        """Queue a payload; if it belongs to a batch, wait for the rest of it."""
        if place is not None:
            payload = place.reply.fill(place.index, payload)
        if payload is not None and not self.closed:
            self.queue.append(payload)


class _Place(Struct, frozen=True):
    """Where in which batch an answer belongs."""

    reply: "_BatchReply"
    index: int


class _BatchReply:
    """The answers to one batch, until all that are owed are there."""

    def __init__(self, size: int) -> None:
        self._answers: list[bytes | None] = [None] * size
        self._missing = size
        self._settled: list[Id] = []

    def fill(self, index: int, answer: bytes | None) -> bytes | None:
        """Note one entry's answer, None if none is owed; return the whole when it is whole."""
        self._answers[index] = answer
        self._missing -= 1
        answers = [answer for answer in self._answers if answer is not None]
        return join(answers) if answers and not self._missing else None

    def settle(self, id: Id) -> list[Id]:
        """Note the id of a request that was settled; return all of them when none is missing."""
        self._settled.append(id)
        return [] if self._missing else self._settled
