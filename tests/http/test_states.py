"""The tables of states: listed transitions work, all others are errors, and no state is missing."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.http.states import (
    ACTIVITY_TRANSITIONS,
    CLIENT_TRANSITIONS,
    EXCHANGE_TRANSITIONS,
    INPUT_TRANSITIONS,
    OUTPUT_TRANSITIONS,
    Activity,
    ClientEvent,
    ClientState,
    ConnectionEvent,
    ConnectionState,
    ExchangeEvent,
    ExchangeStage,
    InputFlow,
    InvalidTransition,
    OutputFlow,
    Timeout,
    client_state_after,
    connection_state,
    stage_after,
)

Table = Mapping[Any, Mapping[Any, Any]]

NEW = connection_state(Activity.NEW, InputFlow.OPEN, OutputFlow.OPEN)
ALL = [connection_state(*parts) for parts in product(Activity, InputFlow, OutputFlow)]
PARTS: list[Table] = [ACTIVITY_TRANSITIONS, INPUT_TRANSITIONS, OUTPUT_TRANSITIONS]
SINGLE: list[tuple[Table, type[StrEnum], type[StrEnum]]] = [
    (EXCHANGE_TRANSITIONS, ExchangeStage, ExchangeEvent),
    (CLIENT_TRANSITIONS, ClientState, ClientEvent),
]


def parts_of(state: ConnectionState) -> tuple[StrEnum, StrEnum, StrEnum]:
    return state.activity, state.input, state.output


def allowed(state: ConnectionState) -> set[ConnectionEvent]:
    """Return the events that the tables list for a state."""
    tables = zip(PARTS, parts_of(state), strict=True)
    return {event for table, part in tables for event in table[part]}


def reachable() -> set[ConnectionState]:
    found, waiting = {NEW}, [NEW]
    while waiting:
        state = waiting.pop()
        following = {state.after[event] for event in allowed(state)} - found
        found |= following
        waiting += following
    return found


# The state of a connection.


def test_each_event_moves_one_part_of_the_state() -> None:
    listed = [event for table in PARTS for event in {e for row in table.values() for e in row}]
    assert sorted(listed) == sorted(ConnectionEvent)


@pytest.mark.parametrize("state", ALL, ids=repr)
def test_an_event_of_a_connection_is_listed_or_an_error(state: ConnectionState) -> None:
    for event in ConnectionEvent:
        listed = [
            table[part].get(event, part) for table, part in zip(PARTS, parts_of(state), strict=True)
        ]
        if event in allowed(state):
            assert parts_of(state.after[event]) == tuple(listed)
        else:
            with pytest.raises(InvalidTransition, match=f"allows {event}, got <{state.activity}"):
                state.after[event]


def test_equal_states_are_the_same_object() -> None:
    assert len(set(ALL)) == len(Activity) * len(InputFlow) * len(OutputFlow)
    for state in ALL:
        assert connection_state(state.activity, state.input, state.output) is state
        assert {state.after[event] for event in allowed(state)} <= set(ALL)


def test_every_activity_is_reached_and_only_closed_is_the_end() -> None:
    found = reachable()
    assert {state.activity for state in found} == set(Activity)
    assert {state.input for state in found} == set(InputFlow)
    assert {state.output for state in found} == set(OutputFlow)
    for state in found:
        if state.activity is Activity.CLOSED:
            activities = {state.after[event].activity for event in allowed(state)}
            assert activities <= {Activity.CLOSED}
        else:
            lost = state.after[ConnectionEvent.CONNECTION_LOST]
            assert lost.activity is Activity.CLOSED


def test_nothing_is_handled_after_the_end_has_begun() -> None:
    endings = {Activity.LINGERING, Activity.CLOSING, Activity.CLOSED}
    for state in ALL:
        assert state.is_ending == (state.activity in endings)
        if state.is_ending:
            assert not state.parses
            assert not state.may_handle
            assert all(state.after[event].is_ending for event in allowed(state))


def test_requests_are_parsed_and_handled_only_while_the_client_reads() -> None:
    for state in ALL:
        if state.output is OutputFlow.PAUSED:
            assert not state.is_writable
            assert not state.parses
            assert not state.may_handle
    parsing = {state.activity for state in ALL if state.parses}
    assert parsing == {
        Activity.NEW,
        Activity.IDLE,
        Activity.READING_HEAD,
        Activity.READING_BODY,
    }
    assert {state.activity for state in ALL if state.may_handle} == {Activity.QUEUED}


def test_one_exchange_runs_at_a_time() -> None:
    running = {Activity.DISPATCHING, Activity.HANDLING_SINGLE, Activity.HANDLING}
    begins = {ConnectionEvent.ACCEPTED, ConnectionEvent.DISPATCHED}
    for state in ALL:
        assert not (state.activity in running and begins & allowed(state))
        assert state.activity not in running or ConnectionEvent.FINISHED in allowed(state)


TIMEOUTS = {
    Activity.NEW: Timeout.FIRST_REQUEST,
    Activity.IDLE: Timeout.IDLE,
    Activity.READING_HEAD: Timeout.HEAD,
    Activity.CHECKING_BODY: Timeout.NONE,
    Activity.READING_BODY: Timeout.BODY,
    Activity.DISPATCHING: Timeout.NONE,
    Activity.HANDLING_SINGLE: Timeout.NONE,
    Activity.HANDLING: Timeout.NONE,
    Activity.QUEUED: Timeout.NONE,
    Activity.UPGRADED: Timeout.NONE,
    Activity.LINGERING: Timeout.LINGER,
    Activity.CLOSING: Timeout.LINGER,
    Activity.CLOSED: Timeout.NONE,
}


@pytest.mark.parametrize("activity", Activity)
def test_the_timeout_follows_from_the_state(activity: Activity) -> None:
    expected = TIMEOUTS[activity]
    assert connection_state(activity, InputFlow.OPEN, OutputFlow.OPEN).timeout is expected
    is_ending = activity in {Activity.LINGERING, Activity.CLOSING, Activity.CLOSED}
    for flow in InputFlow:  # a client that does not read comes before all else
        slow = connection_state(activity, flow, OutputFlow.PAUSED)
        assert slow.timeout is (expected if is_ending else Timeout.WRITE)
    is_running = activity in {Activity.HANDLING_SINGLE, Activity.HANDLING}
    half_closed = connection_state(activity, InputFlow.ENDED, OutputFlow.OPEN)
    assert half_closed.has_eof
    assert half_closed.timeout is (Timeout.HALF_CLOSED if is_running else expected)


@given(st.lists(st.sampled_from(ConnectionEvent)))
def test_no_sequence_of_events_leaves_the_known_states(events: list[ConnectionEvent]) -> None:
    known, state = reachable(), NEW
    for event in events:
        if event in allowed(state):
            state = state.after[event]
        else:
            with pytest.raises(InvalidTransition):
                state.after[event]
        assert state in known


@given(st.data())
def test_a_sequence_of_allowed_events_can_always_end(data: st.DataObject) -> None:
    state = NEW
    for _ in range(data.draw(st.integers(0, 40))):
        events = sorted(allowed(state))
        if not events:
            break
        state = state.after[data.draw(st.sampled_from(events))]
    if state.activity is not Activity.CLOSED:
        assert state.after[ConnectionEvent.CONNECTION_LOST].activity is Activity.CLOSED


# The stage of an exchange, and the state of a client connection.


@pytest.mark.parametrize(("table", "states", "events"), SINGLE, ids=["exchange", "client"])
def test_a_table_is_complete_and_all_else_is_an_error(
    table: Table, states: type[StrEnum], events: type[StrEnum]
) -> None:
    assert set(table) == set(states)
    assert {event for row in table.values() for event in row} == set(events)
    initial = next(iter(states))
    assert {state for row in table.values() for state in row.values()} | {initial} == set(states)


@pytest.mark.parametrize("stage", ExchangeStage)
def test_an_event_of_an_exchange_is_listed_or_an_error(stage: ExchangeStage) -> None:
    for event in ExchangeEvent:
        if event in EXCHANGE_TRANSITIONS[stage]:
            assert stage_after(stage, event) is EXCHANGE_TRANSITIONS[stage][event]
        else:
            with pytest.raises(InvalidTransition, match=f"expected an exchange .* got .* {stage}"):
                stage_after(stage, event)


@pytest.mark.parametrize("state", ClientState)
def test_an_event_of_a_client_is_listed_or_an_error(state: ClientState) -> None:
    for event in ClientEvent:
        if event in CLIENT_TRANSITIONS[state]:
            assert client_state_after(state, event) is CLIENT_TRANSITIONS[state][event]
        else:
            with pytest.raises(InvalidTransition, match=f"expected a connection .* got .* {state}"):
                client_state_after(state, event)


@given(st.lists(st.sampled_from(ExchangeEvent)))
def test_an_exchange_has_one_response(events: list[ExchangeEvent]) -> None:
    stage, responses, ends = ExchangeStage.NEW, 0, 0
    for event in events:
        before = stage
        try:
            stage = stage_after(stage, event)
        except InvalidTransition:
            continue
        if before is ExchangeStage.DISCONNECTED:
            assert stage is before
        else:
            responses += before is ExchangeStage.NEW and event is not ExchangeEvent.DISCONNECTED
            ends += stage is ExchangeStage.FINISHED is not before
    assert responses <= 1
    assert ends <= 1


@given(st.lists(st.sampled_from(ClientEvent)))
def test_a_client_connection_carries_one_request_at_a_time(events: list[ClientEvent]) -> None:
    state, in_flight = ClientState.IDLE, 0
    for event in events:
        try:
            state = client_state_after(state, event)
        except InvalidTransition:
            continue
        in_flight += event is ClientEvent.REQUEST_SENT
        in_flight -= event is ClientEvent.RESPONSE_COMPLETE
        if state is ClientState.CLOSED:
            return
        assert in_flight == (state is not ClientState.IDLE)
