"""The invariants of a Peer: a state machine compares it with a simple model."""

from typing import Any, TypeAlias, cast

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.jsonrpc.peer_messages import (
    MALFORMED_RESPONSE,
    NOTIFICATION,
    batch_payload,
    request_payload,
    sent_messages,
)
from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    OVERLOADED,
    Called,
    ErrorResponse,
    Event,
    Failed,
    Id,
    IdRemapper,
    Lost,
    Notified,
    Peer,
    Response,
    Returned,
    RpcError,
    Violated,
)

MAX_IN_FLIGHT = 4

Sign: TypeAlias = tuple[Any, Any]
"""A sent message as id and "result", error code or method."""

Entry: TypeAlias = tuple[str, Any]
"""A message of the other side: its kind, and an id if the kind has one."""

IDS = st.sampled_from([1, 2, 3, "1", "x", None])
PICKS = st.integers(0, 9)
ENTRIES = st.one_of(
    st.tuples(st.just("ask"), IDS),
    st.tuples(st.just("ask"), IDS),
    st.tuples(st.sampled_from(["result", "error", "broken", "stray"]), PICKS),
    st.tuples(st.sampled_from(["tell", "junk"]), st.none()),
)


def sign(message: Any) -> Sign | list[Any]:
    if isinstance(message, list):
        return [sign(entry) for entry in cast("list[Any]", message)]
    if "method" in message:
        return message.get("id"), message["method"]
    return message["id"], "result" if "result" in message else message["error"]["code"]


class Slots:
    """What the model expects as the response to one payload of the other side."""

    def __init__(self, size: int, whole: bool) -> None:
        self.signs: dict[int, Sign | None] = dict.fromkeys(range(size))
        self.missing = set(range(size))
        self.ids: list[Id] = []
        self.whole = whole


class Conversation(RuleBasedStateMachine):
    """A Peer that allows batches, the calls it waits for, and the requests that wait for it."""

    @initialize()
    def begin(self) -> None:
        self.remapper = IdRemapper()
        self.neighbour = Peer("web", self.remapper)
        self.peer = Peer("fs", self.remapper, batch_policy="allow", max_in_flight=MAX_IN_FLIGHT)
        self.calls: dict[int, Id] = {}
        self.owed: dict[Called, tuple[Slots, int]] = {}
        self.in_use: set[Id] = set()
        self.expected: list[Any] = []
        self.retired: list[int] = []

    # Actions of this side

    @rule(original=IDS)
    def call(self, original: Id) -> None:
        if self.peer.input_ended:
            return
        id = self.peer.call("m", original_id=original)
        assert id not in self.calls
        assert id not in self.retired
        self.calls[id] = original
        self.expected.append((id, "m"))

    @rule()
    def let_the_neighbour_call(self) -> None:
        self.neighbour.forget(self.neighbour.call("m"))

    @rule()
    def notify(self) -> None:
        self.peer.notify("told")
        if not self.peer.closed:
            self.expected.append((None, "told"))

    @precondition(lambda self: self.calls)
    @rule(pick=PICKS)
    def forget(self, pick: int) -> None:
        id = self.pick_call(pick)
        assert self.peer.forget(id)
        assert not self.peer.forget(id)
        self.retire(id)

    @precondition(lambda self: self.owed)
    @rule(pick=PICKS, how=st.sampled_from(["answer", "fail", "abandon"]))
    def settle(self, pick: int, how: str) -> None:
        called = list(self.owed)[pick % len(self.owed)]
        slots, index = self.owed.pop(called)
        id = called.request.id
        if how == "answer":
            self.peer.respond(called, 1)
            self.fill(slots, index, (id, "result"))
        elif how == "fail":
            self.peer.respond_error(called, RpcError(7, "no"))
            self.fill(slots, index, (id, 7))
        else:
            self.peer.drop_request(called)
            self.fill(slots, index, None)

    # Actions of the other side

    @rule(entry=ENTRIES)
    def receive_one(self, entry: Entry) -> None:
        self.receive([entry], whole=False)

    @rule(entries=st.lists(ENTRIES, min_size=1, max_size=5))
    def receive_a_batch(self, entries: list[Entry]) -> None:
        self.receive(entries, whole=True)

    @rule(garbage=st.binary(max_size=20))
    def receive_garbage(self, garbage: bytes) -> None:
        self.peer.receive(b"\x00" + garbage)
        if not self.peer.input_ended:
            self.expected.append((None, -32700))

    @rule(close=st.booleans(), really=PICKS)
    def end(self, close: bool, really: int) -> None:
        if really:  # rarely, because nothing happens afterwards
            return
        lost = self.peer.close() if close else self.peer.end_input()
        assert lost == [Lost(id, original) for id, original in sorted(self.calls.items())]
        for id in list(self.calls):
            self.retire(id)
        if close:
            self.owed.clear()

    # Invariants

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        assert [sign(message) for message in sent_messages(self.peer)] == self.expected
        self.expected.clear()
        assert self.peer.backlog == 0

    @invariant()
    def idle_means_that_nothing_is_owed(self) -> None:
        assert self.peer.idle == (not self.calls and not self.owed)
        assert self.remapper.pending_count() == len(self.calls)
        assert all(self.peer.is_pending(called) for called in self.owed)
        assert len(self.retired) == len(set(self.retired))

    def teardown(self) -> None:
        if hasattr(self, "peer"):
            self.peer.close()
            assert self.peer.idle
            assert self.peer.next_payload() is None
            assert self.remapper.pending_count() == 0

    # The model

    def receive(self, entries: list[Entry], whole: bool) -> None:
        # The other side can use the ids of calls that it has received.
        chosen = [self.choose(entry) for entry in entries]
        payloads = [self.payload(entry) for entry in chosen]
        events = self.peer.receive(batch_payload(*payloads) if whole else payloads[0])
        if self.peer.input_ended:
            assert events == []
            return
        slots = Slots(len(entries), whole)
        for index, entry in enumerate(chosen):
            events = events[self.take(entry, events, slots, index) :]
        assert events == []

    def choose(self, entry: Entry) -> Entry:
        kind, pick = entry
        if kind in {"result", "error", "broken"}:
            return (kind, self.pick_call(pick)) if self.calls else ("stray", pick)
        return entry

    def payload(self, entry: Entry) -> bytes:
        kind, id = entry
        return {
            "ask": lambda: request_payload(id),
            "result": lambda: Response(id, 1).encode(),
            "error": lambda: ErrorResponse(id, RpcError(9, "no")).encode(),
            "broken": lambda: MALFORMED_RESPONSE % id,
            "stray": lambda: Response(-1 - id, 1).encode(),
            "tell": lambda: NOTIFICATION,
            "junk": lambda: b"7",
        }[kind]()

    def take(self, entry: Entry, events: list[Event], slots: Slots, index: int) -> int:
        """Check the events of one entry; return how many there were."""
        kind, id = entry
        answer: Sign | None = None
        count = 1
        if kind == "ask":
            return self.take_request(id, events, slots, index)
        if kind in {"result", "error", "broken"} and id in self.calls:
            count = self.take_answer(kind, id, events)
        elif kind == "tell":
            assert isinstance(events[0], Notified)
        else:
            assert isinstance(events[0], Violated)
            answer = (None, INVALID_REQUEST) if kind == "junk" else None
        self.fill(slots, index, answer)
        return count

    def take_request(self, id: Id, events: list[Event], slots: Slots, index: int) -> int:
        if id in self.in_use:
            assert isinstance(events[0], Violated)
            self.fill(slots, index, (None, INVALID_REQUEST))
            return 1
        if len(self.owed) == MAX_IN_FLIGHT:
            self.fill(slots, index, (id, OVERLOADED))
            return 0
        called = events[0]
        assert isinstance(called, Called)
        assert called.request.id == id
        self.owed[called] = slots, index
        slots.ids.append(id)
        self.in_use |= {id} - {None}
        return 1

    def take_answer(self, kind: str, id: int, events: list[Event]) -> int:
        original = self.calls[id]
        self.retire(id)
        if kind == "broken":
            assert isinstance(events[0], Violated)
        count = 2 if kind == "broken" else 1
        event = events[count - 1]
        assert isinstance(event, Returned if kind == "result" else Failed)
        assert (event.id, event.original_id) == (id, original)
        if isinstance(event, Failed):
            assert event.error.code == (INTERNAL_ERROR if kind == "broken" else 9)
        return count

    def fill(self, slots: Slots, index: int, answer: Sign | None) -> None:
        """Expect the response, or all responses of the batch if this was the last."""
        slots.signs[index] = answer
        slots.missing.remove(index)
        if slots.missing:
            return
        self.in_use -= set(slots.ids)
        answers = [answer for answer in slots.signs.values() if answer is not None]
        if answers:
            self.expected.append(answers if slots.whole else answers[0])

    def pick_call(self, pick: int) -> int:
        return list(self.calls)[pick % len(self.calls)]

    def retire(self, id: int) -> None:
        del self.calls[id]
        self.retired.append(id)


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
