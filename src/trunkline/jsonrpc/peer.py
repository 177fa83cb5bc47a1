"""Peer: one end of a JSON-RPC conversation, which knows every request that lacks a response.

    receive(payload) ──> events: Called, Notified, Returned, Failed, Violated
    call, notify, respond, respond_error ──> payloads, taken out by next_payload()
    end_input, close ──> Lost, once for each call that will get no response

Every call gets an id of the gateway's own from an IdRemapper, which peers may share.

A Peer has no role, clock, task or socket; it changes only in its methods. It takes batches apart:
each entry is an event of its own, and the responses are joined when the last of them is there.

Invariants upheld here:
1. A request gets at most one response, under its own id.
2. A call is retired exactly once: Returned, Failed, Lost, or forgotten by its maker.
3. Idle means that no response is outstanding in either direction.
4. A closed peer sends nothing and reports nothing.
5. The responses to a batch are sent together, in the order of its entries.
"""

from collections import deque
from threading import Lock
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from trunkline.jsonrpc.codec import MAX_BATCH_SIZE, MAX_PAYLOAD_BYTES, decode, decode_result
from trunkline.jsonrpc.errors import (
    INTERNAL_ERROR,
    OVERLOADED,
    LocalProtocolError,
    MalformedResponse,
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
    encode_request,
    join_batch,
)
from trunkline.jsonrpc.raw_json import UNSET, Raw

BatchPolicy: TypeAlias = Literal["reject", "allow"]

# How many forgotten calls are remembered, so that a late response to one is no violation.
MAX_FORGOTTEN_CALLS = 1024

# The default limit of requests that wait for a response of this side.
MAX_IN_FLIGHT = 1024

# How many ids are made per lock acquisition.
ID_BLOCK_SIZE = 64

# The origin of a call that other code removed from the remapper.
_UNKNOWN_ORIGIN: tuple[Id, str] = (None, "")


class RemappedCall(NamedTuple):
    """One call in flight, for operators."""

    gateway_id: int
    original_id: Id
    backend: str


class IdRemapper:
    """Maps ids of callers to ids of the gateway and back.

        caller's id 7 ─┐                                  ┌─> 41 ──> backend "fs"
        caller's id 7 ─┴─> remap ──> one counter for all ─┴─> 42 ──> backend "web"
                           restore(41) ──> (7, "fs"), once

    It does not know what a call is, when it was made or how it ended. Many peers may share it, on
    any number of threads, with or without a global interpreter lock:
    1. No gateway id is given out twice; the first is 1.
    2. `restore` returns exactly what was remapped, type included, and only once.
    3. A remapped id is pending until it is restored or forgotten; nothing else is remembered.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._last_id = 0
        self._free_ids: deque[int] = deque()
        self._pending: dict[int, tuple[Id, str]] = {}

    def remap(self, original_id: Id, backend: str) -> int:
        """Return a new gateway id that stands for `original_id` towards `backend`."""
        while True:
            try:
                id = self._free_ids.popleft()  # atomic: no other thread gets the same one
            except IndexError:
                self._refill()
            else:
                self._pending[id] = original_id, backend
                return id

    def _refill(self) -> None:
        with self._lock:
            self._free_ids.extend(range(self._last_id + 1, self._last_id + 1 + ID_BLOCK_SIZE))
            self._last_id += ID_BLOCK_SIZE

    def restore(self, gateway_id: object) -> tuple[Id, str] | None:
        """Return the original id and the backend, and forget them; None if not pending."""
        # Python treats True and 1.0 as equal to 1, but only ints are given out.
        if type(gateway_id) is not int:
            return None
        return self._pending.pop(gateway_id, None)  # atomic

    def forget(self, gateway_id: int) -> bool:
        """Drop a mapping whose response no longer matters; return whether it was pending."""
        return self._pending.pop(gateway_id, None) is not None

    def pending_count(self) -> int:
        """Return the number of calls in flight."""
        return len(self._pending)

    def pending(self) -> tuple[RemappedCall, ...]:
        """Return all calls in flight, oldest first."""
        pending = self._pending.copy()  # one step: other threads change the dict meanwhile
        return tuple(RemappedCall(id, *origin) for id, origin in pending.items())


class Called(Struct, frozen=True, gc=False, eq=False):
    """The other side sent a request; pass this event to `respond` or `respond_error`."""

    request: Request


class Notified(Struct, frozen=True, gc=False):
    """The other side sent a notification."""

    notification: Notification


class Returned(Struct, frozen=True, gc=False):
    """A call of this side has its result."""

    id: int
    original_id: Id
    result: Raw
    token: Any = None


class Failed(Struct, frozen=True, gc=False):
    """A call of this side got an error response, or a malformed response."""

    id: int
    original_id: Id
    error: RpcError
    token: Any = None


class Lost(Struct, frozen=True, gc=False):
    """A call of this side will get no response."""

    id: int
    original_id: Id
    token: Any = None


class Violated(Struct, frozen=True, gc=False):
    """The other side violated the protocol; it has been told where that is allowed."""

    violation: RemoteProtocolError


Event: TypeAlias = Called | Notified | Returned | Failed | Lost | Violated


class Peer:
    """One pure end of a conversation: payloads in, events out; responses in, payloads out."""

    def __init__(
        self,
        name: str = "",
        remapper: IdRemapper | None = None,
        *,
        batch_policy: BatchPolicy = "reject",
        max_in_flight: int = MAX_IN_FLIGHT,
        max_payload: int = MAX_PAYLOAD_BYTES,
        max_batch: int = MAX_BATCH_SIZE,
        reply_to_violations: bool = True,
    ) -> None:
        """Start a conversation.

        `name` is the name of the other side in the remapper, which many peers may share. Without
        `reply_to_violations` the other side is not told about invalid payloads: programs that print
        log lines to stdout should not get an error response for each.
        """
        check_batch_policy(batch_policy)
        self.batch_policy: BatchPolicy = batch_policy
        self.closed = False
        self.input_ended = False
        self._name = name
        self._remapper = remapper or IdRemapper()
        self._max_payload = max_payload
        self._max_batch = max_batch
        self._max_in_flight = max_in_flight
        self._reply_to_violations = reply_to_violations
        # A payload that try_receive() decoded and left for receive().
        self._decoded: tuple[bytes, Message | Batch] | None = None
        # The calls of this side without a response, by id, each with its token.
        self.pending_calls: dict[int, Any] = {}
        self._forgotten_ids: deque[Id] = deque(maxlen=MAX_FORGOTTEN_CALLS)
        self._pending_requests: dict[Called, _BatchSlot | None] = {}
        self._ids_in_use: set[Id] = set()
        # The payloads to send, in order.
        self.send_queue: deque[bytes] = deque()

    # Input

    def receive(self, payload: bytes | str) -> list[Event]:
        """Return the events of one payload, in its order."""
        if self.input_ended:
            return []
        decoded, self._decoded = self._decoded, None
        try:
            if decoded is not None and decoded[0] is payload:
                message = decoded[1]
            else:
                max_batch = self._max_batch if self.batch_policy == "allow" else 0
                message = decode(payload, self._max_payload, max_batch)
        except RemoteProtocolError as violation:
            return self._handle_entry(violation, None)
        if not isinstance(message, Batch):
            return self._handle_entry(message, None)
        batch_response = _BatchResponse(len(message.entries))
        return [
            event
            for index, entry in enumerate(message.entries)
            for event in self._handle_entry(entry, _BatchSlot(batch_response, index))
        ]

    def receive_result(self, payload: bytes) -> tuple[Any, Raw] | None:
        """Return the token and the result of the call that `payload` responds to.

        Returns None and changes nothing if the payload is anything else. Results are what a gateway
        receives most, and this takes the fewest steps.
        """
        pending_calls = self.pending_calls
        found = decode_result(payload, self._max_payload) if pending_calls else None
        if found is None or (id := found.id) not in pending_calls:
            return None
        self._remapper.forget(id)
        return pending_calls.pop(id), found.result

    def try_receive(self, payload: bytes) -> list[Event] | None:
        """Return the events of a request or a successful response.

        Returns None and changes nothing if the payload is anything else; pass it to `receive`.
        """
        if self.input_ended:
            return None
        try:
            message = decode(payload, self._max_payload, 0)
        except RemoteProtocolError:
            return None
        if isinstance(message, Response):
            return self._handle_response(message)
        if isinstance(message, Request):
            return self._handle_request(message, None)
        self._decoded = payload, message  # saves receive() a second decoding
        return None

    def report_violation(self, violation: RemoteProtocolError) -> list[Event]:
        """Return the events of input that never became a payload."""
        return [] if self.input_ended else self._handle_violation(violation, None)

    def end_input(self) -> list[Lost]:
        """Note the end of input; return the calls that are lost with it.

        Requests of the other side can still be responded to.
        """
        self.input_ended = True
        calls, self.pending_calls = self.pending_calls, {}
        return [
            Lost(id, (self._remapper.restore(id) or _UNKNOWN_ORIGIN)[0], calls[id])
            for id in sorted(calls)
        ]

    def _handle_entry(
        self, entry: Message | RemoteProtocolError, slot: "_BatchSlot | None"
    ) -> list[Event]:
        if isinstance(entry, Request):
            return self._handle_request(entry, slot)
        if isinstance(entry, RemoteProtocolError):
            return self._handle_violation(entry, slot)
        self._enqueue(None, slot)  # notifications and responses get no response
        if isinstance(entry, Notification):
            return [Notified(entry)]
        return self._handle_response(entry)

    def _handle_request(self, request: Request, slot: "_BatchSlot | None") -> list[Event]:
        id = request.id
        if id in self._ids_in_use:
            # Under null: the caller would take its id for the response to its first request.
            error = RpcError.invalid_request(f"id {id!r} is in use already")
            error_payload = ErrorResponse(None, error).encode()
            return self._handle_violation(RemoteProtocolError(error, error_payload), slot)
        if len(self._pending_requests) >= self._max_in_flight:
            error = RpcError(OVERLOADED, "Too many requests in flight")
            self._enqueue(ErrorResponse(id, error).encode(), slot)
            return []
        if id is not None:  # several requests may have the id null, as JSON-RPC 2.0 allows
            self._ids_in_use.add(id)
        called = Called(request)
        self._pending_requests[called] = slot
        return [called]

    def _handle_response(self, response: Response | ErrorResponse) -> list[Event]:
        id: Any = response.id  # only integers are ids of calls
        try:
            token = self.pending_calls.pop(id)
        except KeyError:
            return self._handle_unknown_response(id)
        original_id, _ = self._remapper.restore(id) or _UNKNOWN_ORIGIN
        if isinstance(response, Response):
            return [Returned(id, original_id, response.result, token)]
        return [Failed(id, original_id, response.error, token)]

    def _handle_unknown_response(self, id: Id) -> list[Event]:
        if id in self._forgotten_ids:
            self._forgotten_ids.remove(id)
            return []  # a late response to a forgotten call
        error = RpcError.invalid_request(f"no call in flight has id {id!r}")
        return [Violated(RemoteProtocolError(error))]

    def _handle_violation(
        self, violation: RemoteProtocolError, slot: "_BatchSlot | None"
    ) -> list[Event]:
        id = violation.response_id
        pending_id = id if isinstance(id, int) and id in self.pending_calls else None
        replies = self._reply_to_violations and pending_id is None
        self._enqueue(violation.error_payload if replies else None, slot)
        events: list[Event] = [Violated(violation)]
        if pending_id is not None:
            text = f"the response was malformed: {violation}"
            error = MalformedResponse(INTERNAL_ERROR, text)
            events += self._handle_response(ErrorResponse(pending_id, error))
        return events

    # Output

    def call(
        self, method: str, params: Any = UNSET, original_id: Id = None, token: Any = None
    ) -> int:
        """Send a request for a caller that knows it as `original_id`; return its id.

        `token` comes back with the outcome.
        """
        if self.input_ended:
            raise LocalProtocolError("the conversation has ended: open another connection")
        id = self._remapper.remap(original_id, self._name)
        try:
            payload = encode_request(id, method, params)
        except Exception:  # any: a value in params may run code of the caller's
            self._remapper.forget(id)
            raise
        self.pending_calls[id] = token
        self.send_queue.append(payload)
        return id

    def notify(self, method: str, params: Any = UNSET) -> None:
        """Send a notification."""
        payload = Notification(method, params).encode()
        self._enqueue(payload, None)

    def respond(self, called: Called, result: Any) -> None:
        """Send the result of a request."""
        self._complete_request(called, Response(called.request.id, result).encode())

    def respond_error(self, called: Called, error: RpcError) -> None:
        """Send an error in response to a request."""
        self._complete_request(called, ErrorResponse(called.request.id, error).encode())

    def drop_request(self, called: Called) -> None:
        """Leave a request without a response, because its caller cancelled it."""
        self._complete_request(called, None)

    def forget(self, id: int) -> bool:
        """Retire a call whose response no longer matters; return whether it was pending."""
        if id not in self.pending_calls:
            return False
        del self.pending_calls[id]
        self._remapper.forget(id)
        self._forgotten_ids.append(id)
        return True

    def close(self) -> list[Lost]:
        """End the conversation; return the calls that are lost with it."""
        lost = self.end_input()
        self.closed = True
        self._pending_requests.clear()
        self._ids_in_use.clear()
        self._decoded = None
        self.send_queue.clear()
        return lost

    def next_payload(self) -> bytes | None:
        """Take the next payload to send out of the queue, if there is one."""
        return self.send_queue.popleft() if self.send_queue else None

    def requeue(self, payload: bytes) -> None:
        """Put back a payload that could not be sent, as the next one."""
        self.send_queue.appendleft(payload)

    @property
    def backlog(self) -> int:
        """The number of payloads that wait to be sent."""
        return len(self.send_queue)

    @property
    def idle(self) -> bool:
        """Whether no response is outstanding in either direction."""
        return not self.pending_calls and not self._pending_requests

    def is_pending(self, called: Called) -> bool:
        """Return whether a request still waits for a response of this side."""
        return called in self._pending_requests

    def _complete_request(self, called: Called, payload: bytes | None) -> None:
        if self.closed:
            return
        if called not in self._pending_requests:
            raise LocalProtocolError(
                f"expected a request without a response, got {called.request.id!r} again"
            )
        slot = self._pending_requests.pop(called)
        self._enqueue(payload, slot)
        # An id is in use until its response is sent: in a batch, with the last of them.
        if slot is None:
            self._ids_in_use.discard(called.request.id)
        else:
            self._ids_in_use.difference_update(slot.batch_response.complete(called.request.id))

    def _enqueue(self, payload: bytes | None, slot: "_BatchSlot | None") -> None:
        """Queue a payload; in a batch, it waits for the rest of the batch."""
        if slot is not None:
            payload = slot.batch_response.fill(slot.index, payload)
        if payload is not None and not self.closed:
            self.send_queue.append(payload)


def check_batch_policy(policy: str) -> None:
    """Raise LocalProtocolError for anything but a BatchPolicy."""
    if policy not in ("reject", "allow"):
        raise LocalProtocolError(f"expected 'reject' or 'allow' as batch policy, got {policy!r}")


class _BatchSlot(Struct, frozen=True):
    batch_response: "_BatchResponse"
    index: int


class _BatchResponse:
    """The responses to one batch, until all of them are there."""

    def __init__(self, size: int) -> None:
        self._responses: list[bytes | None] = [None] * size
        self._missing = size
        self._completed_ids: list[Id] = []

    def fill(self, index: int, response: bytes | None) -> bytes | None:
        """Store the response to one entry, None if it gets none; return the batch if complete."""
        self._responses[index] = response
        self._missing -= 1
        responses = [response for response in self._responses if response is not None]
        return join_batch(responses) if responses and not self._missing else None

    def complete(self, id: Id) -> list[Id]:
        """Store the id of a completed request; return all ids if none is missing."""
        self._completed_ids.append(id)
        return [] if self._missing else self._completed_ids
