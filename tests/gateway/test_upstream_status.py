"""The settings and the state of one upstream."""

from trunkline.gateway.settings import CIRCUIT_STATES, UpstreamSettings, UpstreamState
from trunkline.routing.breaker import CircuitState


def test_default_settings_have_limits_and_restart_without_end() -> None:
    settings = UpstreamSettings("s", "p")
    assert settings.max_restarts is None
    assert 0 < settings.max_in_flight < settings.max_queue
    assert 0 < settings.timeout <= 60
    assert 0 < settings.start_timeout <= 60
    assert settings.breaker_threshold > 0
    assert settings.breaker_recovery > 0


def test_every_circuit_state_has_its_own_upstream_state() -> None:
    assert CIRCUIT_STATES.keys() == set(CircuitState)
    assert len(set(CIRCUIT_STATES.values())) == len(CircuitState)
    assert CIRCUIT_STATES[CircuitState.CLOSED] is UpstreamState.READY


def test_state_values_are_stable_for_scripts() -> None:
    assert [state.value for state in UpstreamState] == [
        *("not_started", "starting", "ready", "circuit_open", "half_open"),
        *("waiting", "failed", "stopped", "disabled", "idle_stopped"),
    ]
