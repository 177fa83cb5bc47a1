"""How a backend is, in words for those who operate the gateway."""

from trunkline.gateway.snapshot import CIRCUITS, State
from trunkline.routing.breaker import Circuit


def test_every_circuit_has_a_state_of_its_own() -> None:
    assert CIRCUITS.keys() == set(Circuit)
    assert len(set(CIRCUITS.values())) == len(Circuit)
    assert CIRCUITS[Circuit.CLOSED] is State.READY


def test_states_are_words_that_scripts_can_rely_on() -> None:
    assert [state.value for state in State] == [
        *("idle", "starting", "ready", "circuit_open", "half_open"),
        *("waiting", "failed", "stopped"),
    ]
