"""The gateway is ready once it has something to offer, and says which of its backends are not."""

from typing import Any

import pytest

from trunkline.gateway.readiness import MAX_REASON, readiness
from trunkline.gateway.upstream import Snapshot, State


class Backends:
    def __init__(self, *snapshots: Snapshot, started: bool = True) -> None:
        self.started = started
        self._snapshots = snapshots

    def snapshot(self) -> tuple[Snapshot, ...]:
        return self._snapshots


def one(
    name: str, state: State, error: str | None = None, retry_in: float | None = None
) -> Snapshot:
    return Snapshot(name, state, None, 0, 0, 0, error, retry_in)


@pytest.mark.holds("O0.13")
@pytest.mark.parametrize(
    ("backends", "status", "reason"),
    [
        (Backends(), "not_ready", "no servers are configured"),
        (
            Backends(one("a", State.READY), one("b", State.STARTING), started=False),
            "not_ready",
            "the catalogue has not been published yet: waiting for b",
        ),
        (
            Backends(one("a", State.FAILED), one("b", State.WAITING)),
            "not_ready",
            "no server is ready",
        ),
        (Backends(one("a", State.READY), one("b", State.WAITING)), "ready", None),
    ],
)
def test_one_server_that_takes_calls_is_enough(
    backends: Backends, status: str, reason: str | None
) -> None:
    found = readiness(backends)
    assert found["status"] == status
    assert found.get("reasons") == (None if reason is None else [reason])


def test_who_is_degraded_is_named_with_reason_and_next_try() -> None:
    found: dict[str, Any] = readiness(
        Backends(one("a", State.READY), one("b", State.WAITING, "it ended", 2.5))
    )
    assert found == {
        "status": "ready",
        "degraded": [{"server": "b", "state": "waiting", "reason": "it ended", "retryIn": 2.5}],
    }
    assert readiness(Backends(one("a", State.READY))) == {"status": "ready"}


def test_a_reason_is_short_and_without_secrets() -> None:
    def conceal(name: str, text: str) -> str:
        return text.replace("hunter2", f"<{name}>")

    found = readiness(Backends(one("b", State.FAILED, "hunter2" + "x" * 1000)), conceal)
    (degraded,) = found["degraded"]
    assert degraded["reason"].startswith("<b>x")
    assert len(degraded["reason"]) == MAX_REASON
