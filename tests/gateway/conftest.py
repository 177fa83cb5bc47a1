"""Remove all delays: connections close at once, and servers restart at once."""

import pytest

from trunkline.routing import breaker


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_delay(failures: int, jitter: float) -> float:
        return 0.0

    monkeypatch.setattr(breaker, "backoff_delay", no_delay)
