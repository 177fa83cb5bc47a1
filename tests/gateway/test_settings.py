"""What holds for a backend of which the configuration says no more than its name."""

from trunkline.gateway.settings import Settings


def test_whoever_says_nothing_gets_limits_and_a_backend_that_is_started_again_for_ever() -> None:
    settings = Settings("s", "p")
    assert settings.max_restarts is None
    assert 0 < settings.max_in_flight < settings.max_queue
    assert 0 < settings.timeout <= 60
    assert 0 < settings.start_timeout <= 60
    assert settings.breaker_threshold > 0
    assert settings.breaker_recovery > 0
