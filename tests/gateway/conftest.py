"""No test waits for anything by the clock: ends have no grace, and restarts no delay."""

import pytest

from trunkline.backends import link
from trunkline.gateway import gateway
from trunkline.routing import backoff


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(failures: int, chance: float) -> float:
        return 0.0

    monkeypatch.setattr(gateway, "GRACE", 0.0)
    monkeypatch.setattr(link, "GRACE", 0.0)
    monkeypatch.setattr(backoff, "delay", at_once)
