"""The states of connections and exchanges, and the tables of what moves between them.

    NEW, IDLE ──> READING_HEAD ──> READING_BODY
       └──────────────┴──────────────┴──ACCEPTED────> HANDLING_SINGLE ──FINISHED──> IDLE
                                     └──DISPATCHED──> DISPATCHING ──DEFERRED──> HANDLING
             IDLE <──ALL_HANDLED── QUEUED <──FINISHED──────┴─────────────FINISHED──┘
    any ──> LINGERING ──> CLOSING ──> CLOSED          QUEUED ──DISPATCHED──> DISPATCHING

Pure: an event moves a state by one look into a table. What has to be done then, such as writing or
closing, is left to the modules that own the objects: `http.connection`, `http.client_connection`
and `http.asgi`.

The state of a connection has three parts, because a client sends and reads independently of what
the connection is doing. It may send EOF, or stop reading, at any time. One flat list would have 72
states.

Invariants:
1. An event moves one part of a connection's state, as the tables say. What they do not list is an
   error.
2. Which timeout applies, whether arriving bytes are parsed, and whether a request may be handled
   follow from the state alone.
3. Equal states are one object, so they are compared by identity.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from functools import cache
from typing import TypeAlias, TypeVar


class InvalidTransition(RuntimeError):
    """The event cannot happen in this state: a bug of the handler, or of the server."""


class ReaderPhase(StrEnum):
    """What a RequestReader waits for. The parser calls it back in the order of the phases."""

    IDLE = auto()
    """The first byte of a request."""
    HEAD = auto()
    """The rest of a head."""
    BODY = auto()
    """The rest of a body; IDLE or CLOSED follows."""
    CLOSED = auto()
    """Nothing: it reads no more."""


class Activity(StrEnum):
    """What a connection is doing."""

    NEW = auto()
    """Waits for its first request."""
    IDLE = auto()
    """Waits for the next request."""
    READING_HEAD = auto()
    """Waits for the rest of a head."""
    CHECKING_BODY = auto()
    """Waits for the decision whether the body is read."""
    READING_BODY = auto()
    """Waits for the rest of a body."""
    DISPATCHING = auto()
    """Is calling the handler, and reads further bytes when the handler returns."""
    HANDLING_SINGLE = auto()
    """Waits for the response to an ordinary request. No further bytes have arrived."""
    HANDLING = auto()
    """Waits for the response, and then reads further bytes."""
    QUEUED = auto()
    """Is between two requests. The bytes that have arrived wait for their turn."""
    UPGRADED = auto()
    """Carries another protocol than HTTP."""
    LINGERING = auto()
    """Has sent EOF. Discards what still arrives, until the client closes."""
    CLOSING = auto()
    """Closes as soon as everything is written."""
    CLOSED = auto()


class InputFlow(StrEnum):
    """Whether bytes arrive."""

    OPEN = auto()
    PAUSED = auto()
    """Reading is paused, because too many bytes wait for their turn."""
    ENDED = auto()
    """The client has sent EOF."""


class OutputFlow(StrEnum):
    """Whether the client reads."""

    OPEN = auto()
    PAUSED = auto()
    """The write buffer is full."""


class ConnectionEvent(StrEnum):
    """What happens to a connection."""

    HEAD_INCOMPLETE = auto()
    """The bytes that have arrived end within a head."""
    BODY_BEGUN = auto()
    """The bytes end within a body, and it is not decided yet whether the body is read."""
    BODY_CHECKED = auto()
    """It is decided whether the body is read."""
    BODY_INCOMPLETE = auto()
    """The bytes end within a body that is read."""
    ALL_HANDLED = auto()
    """All bytes that have arrived are handled."""
    ACCEPTED = auto()
    """One ordinary request has arrived whole, and nothing else."""
    DISPATCHED = auto()
    """Any other request gets its turn."""
    DEFERRED = auto()
    """The handler has returned without a response."""
    RECEIVED = auto()
    """Bytes have arrived that have to wait for their turn."""
    DRAINED = auto()
    """The current exchange has become the last one."""
    FINISHED = auto()
    """The response is complete."""
    UPGRADED = auto()
    """The handler has switched to another protocol."""
    READING_PAUSED = auto()
    READING_RESUMED = auto()
    EOF_RECEIVED = auto()
    WRITING_PAUSED = auto()
    WRITING_RESUMED = auto()
    EOF_SENT = auto()
    CLOSE_BEGUN = auto()
    CONNECTION_LOST = auto()


class Timeout(StrEnum):
    """Which time limit applies to a connection."""

    NONE = auto()
    FIRST_REQUEST = auto()
    """Until the first byte of the first request."""
    IDLE = auto()
    """Until the first byte of the next request."""
    HEAD = auto()
    """Until the end of the head."""
    BODY = auto()
    """Until the end of the body, which must keep a minimum rate."""
    HALF_CLOSED = auto()
    """Until the response, for a client that has sent EOF: it is probably gone."""
    WRITE = auto()
    """Until a client with a full write buffer has read, at a minimum rate."""
    LINGER = auto()
    """Until the client has read the rest and closed."""


PartT = TypeVar("PartT", Activity, InputFlow, OutputFlow)
Transitions: TypeAlias = Mapping[PartT, Mapping[ConnectionEvent, PartT]]

_ENDS = {
    ConnectionEvent.EOF_SENT: Activity.LINGERING,
    ConnectionEvent.CLOSE_BEGUN: Activity.CLOSING,
    ConnectionEvent.CONNECTION_LOST: Activity.CLOSED,
}
_RECEIVES = {
    ConnectionEvent.HEAD_INCOMPLETE: Activity.READING_HEAD,
    ConnectionEvent.BODY_BEGUN: Activity.CHECKING_BODY,
    ConnectionEvent.BODY_INCOMPLETE: Activity.READING_BODY,
    ConnectionEvent.ACCEPTED: Activity.HANDLING_SINGLE,
    ConnectionEvent.DISPATCHED: Activity.DISPATCHING,
    ConnectionEvent.RECEIVED: Activity.QUEUED,
    **_ENDS,
}

ACTIVITY_TRANSITIONS: Transitions[Activity] = {
    # Empty lines before the first request do not extend its deadline.
    Activity.NEW: {**_RECEIVES, ConnectionEvent.ALL_HANDLED: Activity.NEW},
    Activity.IDLE: {**_RECEIVES, ConnectionEvent.ALL_HANDLED: Activity.IDLE},
    Activity.READING_HEAD: _RECEIVES,
    Activity.CHECKING_BODY: {
        ConnectionEvent.RECEIVED: Activity.CHECKING_BODY,
        ConnectionEvent.BODY_CHECKED: Activity.QUEUED,
        **_ENDS,
    },
    Activity.READING_BODY: _RECEIVES,
    Activity.DISPATCHING: {
        ConnectionEvent.DEFERRED: Activity.HANDLING,
        ConnectionEvent.DRAINED: Activity.DISPATCHING,
        ConnectionEvent.FINISHED: Activity.QUEUED,
        ConnectionEvent.UPGRADED: Activity.UPGRADED,
        **_ENDS,
    },
    Activity.HANDLING_SINGLE: {
        ConnectionEvent.RECEIVED: Activity.HANDLING,
        ConnectionEvent.DRAINED: Activity.HANDLING,
        ConnectionEvent.FINISHED: Activity.IDLE,
        ConnectionEvent.UPGRADED: Activity.UPGRADED,
        **_ENDS,
    },
    Activity.HANDLING: {
        ConnectionEvent.RECEIVED: Activity.HANDLING,
        ConnectionEvent.DRAINED: Activity.HANDLING,
        ConnectionEvent.FINISHED: Activity.QUEUED,
        ConnectionEvent.UPGRADED: Activity.UPGRADED,
        **_ENDS,
    },
    Activity.QUEUED: {
        ConnectionEvent.HEAD_INCOMPLETE: Activity.READING_HEAD,
        ConnectionEvent.BODY_BEGUN: Activity.CHECKING_BODY,
        ConnectionEvent.BODY_INCOMPLETE: Activity.READING_BODY,
        ConnectionEvent.ALL_HANDLED: Activity.IDLE,
        ConnectionEvent.DISPATCHED: Activity.DISPATCHING,
        ConnectionEvent.RECEIVED: Activity.QUEUED,
        **_ENDS,
    },
    Activity.UPGRADED: _ENDS,
    # From here on, a handler that does not know of the end may still finish its exchange.
    Activity.LINGERING: {
        ConnectionEvent.FINISHED: Activity.LINGERING,
        ConnectionEvent.UPGRADED: Activity.LINGERING,
        ConnectionEvent.CLOSE_BEGUN: Activity.CLOSING,
        ConnectionEvent.CONNECTION_LOST: Activity.CLOSED,
    },
    Activity.CLOSING: {
        ConnectionEvent.FINISHED: Activity.CLOSING,
        ConnectionEvent.UPGRADED: Activity.CLOSING,
        ConnectionEvent.CLOSE_BEGUN: Activity.CLOSING,
        ConnectionEvent.CONNECTION_LOST: Activity.CLOSED,
    },
    Activity.CLOSED: {
        ConnectionEvent.UPGRADED: Activity.CLOSED,
        ConnectionEvent.CLOSE_BEGUN: Activity.CLOSED,
    },
}

INPUT_TRANSITIONS: Transitions[InputFlow] = {
    InputFlow.OPEN: {
        ConnectionEvent.READING_PAUSED: InputFlow.PAUSED,
        ConnectionEvent.EOF_RECEIVED: InputFlow.ENDED,
    },
    InputFlow.PAUSED: {
        ConnectionEvent.READING_RESUMED: InputFlow.OPEN,
        ConnectionEvent.EOF_RECEIVED: InputFlow.ENDED,
    },
    InputFlow.ENDED: {},
}

OUTPUT_TRANSITIONS: Transitions[OutputFlow] = {
    OutputFlow.OPEN: {ConnectionEvent.WRITING_PAUSED: OutputFlow.PAUSED},
    OutputFlow.PAUSED: {ConnectionEvent.WRITING_RESUMED: OutputFlow.OPEN},
}

_RECEIVING = {Activity.NEW, Activity.IDLE, Activity.READING_HEAD, Activity.READING_BODY}
_ENDING = {Activity.LINGERING, Activity.CLOSING, Activity.CLOSED}


class ConnectionState:
    """A state of a connection, its three parts; `connection_state` returns it."""

    __slots__ = (
        "activity",
        "after",
        "has_eof",
        "input",
        "is_ending",
        "is_receiving",
        "is_writable",
        "may_handle",
        "output",
        "parses",
        "timeout",
    )

    def __init__(self, activity: Activity, input: InputFlow, output: OutputFlow) -> None:
        self.activity = activity
        self.input = input
        self.output = output
        self.is_writable = is_writable = output is OutputFlow.OPEN
        """Whether the client reads, so that senders need not wait."""
        self.has_eof = input is InputFlow.ENDED
        """Whether the client has sent EOF."""
        self.is_receiving = activity in _RECEIVING
        """Whether everything that has arrived is handled, except for a part of a request."""
        self.parses = self.is_receiving and is_writable
        """Whether arriving bytes are parsed at once."""
        self.may_handle = activity is Activity.QUEUED and is_writable
        """Whether what waits for its turn may be handled."""
        self.is_ending = activity in _ENDING
        """Whether arriving bytes are discarded."""
        self.timeout = _timeout_of(activity, input, output)
        """Which time limit applies."""
        self.after = _StatesAfter(self)
        """The state after each event; raises InvalidTransition."""

    def __repr__(self) -> str:
        return f"<{self.activity}, input {self.input}, output {self.output}>"


class _StatesAfter(dict[ConnectionEvent, ConnectionState]):
    """The states after one state, each looked up in the tables when it is first needed."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state

    def __missing__(self, event: ConnectionEvent) -> ConnectionState:
        state = self._state
        if activity := ACTIVITY_TRANSITIONS[state.activity].get(event):
            following = connection_state(activity, state.input, state.output)
        elif input_flow := INPUT_TRANSITIONS[state.input].get(event):
            following = connection_state(state.activity, input_flow, state.output)
        elif output_flow := OUTPUT_TRANSITIONS[state.output].get(event):
            following = connection_state(state.activity, state.input, output_flow)
        else:
            raise InvalidTransition(f"expected a connection that allows {event}, got {state}")
        self[event] = following
        return following


@cache
def connection_state(activity: Activity, input: InputFlow, output: OutputFlow) -> ConnectionState:
    """Return the state with these parts, always the same object."""
    return ConnectionState(activity, input, output)


def _timeout_of(activity: Activity, input: InputFlow, output: OutputFlow) -> Timeout:
    """Return the time limit of a state: a client that does not read comes before all else."""
    match activity, input, output:
        case Activity.CLOSED, _, _:
            return Timeout.NONE
        case Activity.LINGERING | Activity.CLOSING, _, _:
            return Timeout.LINGER
        case _, _, OutputFlow.PAUSED:
            return Timeout.WRITE
        case Activity.HANDLING_SINGLE | Activity.HANDLING, InputFlow.ENDED, _:
            return Timeout.HALF_CLOSED
        case Activity.NEW, _, _:
            return Timeout.FIRST_REQUEST
        case Activity.IDLE, _, _:
            return Timeout.IDLE
        case Activity.READING_HEAD, _, _:
            return Timeout.HEAD
        case Activity.READING_BODY, _, _:
            return Timeout.BODY
        case _:
            return Timeout.NONE


class ExchangeStage(StrEnum):
    """How far the response of an exchange is."""

    NEW = auto()
    STARTED = auto()
    """Its head is sent, and its body is not complete."""
    FINISHED = auto()
    DISCONNECTED = auto()
    """The client has disconnected before the end of the response."""


class ExchangeEvent(StrEnum):
    """What happens to an exchange."""

    RESPONDED = auto()
    """The handler gave a complete response."""
    BEGUN = auto()
    """The handler gave the head of a response."""
    SENT = auto()
    """The handler gave a part of the body."""
    ENDED = auto()
    """The handler ended the body."""
    UPGRADED = auto()
    """The handler switched to another protocol."""
    DISCONNECTED = auto()


EXCHANGE_TRANSITIONS: Mapping[ExchangeStage, Mapping[ExchangeEvent, ExchangeStage]] = {
    ExchangeStage.NEW: {
        ExchangeEvent.RESPONDED: ExchangeStage.FINISHED,
        ExchangeEvent.BEGUN: ExchangeStage.STARTED,
        ExchangeEvent.UPGRADED: ExchangeStage.FINISHED,
        ExchangeEvent.DISCONNECTED: ExchangeStage.DISCONNECTED,
    },
    ExchangeStage.STARTED: {
        ExchangeEvent.SENT: ExchangeStage.STARTED,
        ExchangeEvent.ENDED: ExchangeStage.FINISHED,
        ExchangeEvent.DISCONNECTED: ExchangeStage.DISCONNECTED,
    },
    ExchangeStage.FINISHED: {ExchangeEvent.DISCONNECTED: ExchangeStage.FINISHED},
    # A handler need not know that its client has disconnected.
    ExchangeStage.DISCONNECTED: dict.fromkeys(ExchangeEvent, ExchangeStage.DISCONNECTED),
}


def stage_after(stage: ExchangeStage, event: ExchangeEvent) -> ExchangeStage:
    """Return the stage of an exchange after an event; raises InvalidTransition."""
    return _look_up(EXCHANGE_TRANSITIONS, stage, event, "an exchange")


class SendQueueState(StrEnum):
    """Whether an AsgiSendQueue takes messages: OPEN, until one of the others."""

    OPEN = auto()
    FINISHED = auto()
    """It has taken the last message, and sends the rest of the queue."""
    DISCONNECTED = auto()
    """It drops all messages."""


class ClientState(StrEnum):
    """The state of a ClientConnection, which carries one request at a time."""

    IDLE = auto()
    """Can take a request."""
    SENT = auto()
    """Has sent a request. Nothing of the response has arrived."""
    READING_HEAD = auto()
    """Waits for the rest of the head."""
    READING_BODY = auto()
    """Waits for the rest of the body."""
    PAUSED = auto()
    """Does not read the body, because its reader is slow."""
    CLOSED = auto()


class ClientEvent(StrEnum):
    """What happens to a ClientConnection."""

    REQUEST_SENT = auto()
    RESPONSE_BEGUN = auto()
    """The first bytes of a response have arrived."""
    HEAD_COMPLETE = auto()
    PAUSED = auto()
    RESUMED = auto()
    RESPONSE_COMPLETE = auto()
    CLOSED = auto()


CLIENT_TRANSITIONS: Mapping[ClientState, Mapping[ClientEvent, ClientState]] = {
    ClientState.IDLE: {
        ClientEvent.REQUEST_SENT: ClientState.SENT,
        ClientEvent.CLOSED: ClientState.CLOSED,
    },
    ClientState.SENT: {
        ClientEvent.RESPONSE_BEGUN: ClientState.READING_HEAD,
        ClientEvent.RESPONSE_COMPLETE: ClientState.IDLE,
        ClientEvent.CLOSED: ClientState.CLOSED,
    },
    ClientState.READING_HEAD: {
        ClientEvent.HEAD_COMPLETE: ClientState.READING_BODY,
        ClientEvent.RESPONSE_COMPLETE: ClientState.IDLE,
        ClientEvent.CLOSED: ClientState.CLOSED,
    },
    ClientState.READING_BODY: {
        ClientEvent.PAUSED: ClientState.PAUSED,
        ClientEvent.RESPONSE_COMPLETE: ClientState.IDLE,
        ClientEvent.CLOSED: ClientState.CLOSED,
    },
    ClientState.PAUSED: {
        ClientEvent.RESUMED: ClientState.READING_BODY,
        ClientEvent.RESPONSE_COMPLETE: ClientState.IDLE,
        ClientEvent.CLOSED: ClientState.CLOSED,
    },
    ClientState.CLOSED: {ClientEvent.CLOSED: ClientState.CLOSED},
}


def client_state_after(state: ClientState, event: ClientEvent) -> ClientState:
    """Return the state of a client connection after an event; raises InvalidTransition."""
    return _look_up(CLIENT_TRANSITIONS, state, event, "a connection")


StateT = TypeVar("StateT", ExchangeStage, ClientState)
EventT = TypeVar("EventT", ExchangeEvent, ClientEvent)


def _look_up(
    transitions: Mapping[StateT, Mapping[EventT, StateT]], state: StateT, event: EventT, what: str
) -> StateT:
    following = transitions[state].get(event)
    if following is None:
        expected = next(each for each, events in transitions.items() if event in events)
        raise InvalidTransition(f"expected {what} that is {expected}, got {what} that is {state}")
    return following
