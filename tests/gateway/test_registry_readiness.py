"""Readiness: the gateway is ready with one ready server, and names the degraded ones."""

from typing import Any

import pytest

from trunkline.gateway.registry import MAX_REASON_CHARS, readiness
from trunkline.gateway.upstream import UpstreamSnapshot, UpstreamState


class FakeOverview:
    def __init__(self, *snapshots: UpstreamSnapshot, started: bool = True) -> None:
        self.started = started
        self._snapshots = snapshots

    def snapshots(self) -> tuple[UpstreamSnapshot, ...]:
        return self._snapshots


def make_snapshot(
    name: str, state: UpstreamState, error: str | None = None, retry_in: float | None = None
) -> UpstreamSnapshot:
    return UpstreamSnapshot(name, state, None, 0, 0, 0, error, retry_in)


@pytest.mark.holds("O0.13")
@pytest.mark.parametrize(
    ("backends", "status", "reason"),
    [
        (FakeOverview(), "not_ready", "no servers are configured"),
        (
            FakeOverview(
                make_snapshot("a", UpstreamState.READY),
                make_snapshot("b", UpstreamState.STARTING),
                started=False,
            ),
            "not_ready",
            "the catalogue has not been published yet: servers are starting",
        ),
        (
            FakeOverview(
                make_snapshot("a", UpstreamState.FAILED), make_snapshot("b", UpstreamState.WAITING)
            ),
            "not_ready",
            "no server is ready",
        ),
        (
            FakeOverview(
                make_snapshot("a", UpstreamState.READY), make_snapshot("b", UpstreamState.WAITING)
            ),
            "ready",
            None,
        ),
    ],
)
def test_the_gateway_is_ready_with_one_ready_server(
    backends: FakeOverview, status: str, reason: str | None
) -> None:
    report = readiness(backends)
    assert report["status"] == status
    assert report.get("reasons") == (None if reason is None else [reason])


def test_degraded_servers_are_counted_and_with_details_named() -> None:
    overview = FakeOverview(
        make_snapshot("a", UpstreamState.READY),
        make_snapshot("b", UpstreamState.WAITING, "it ended", 2.5),
    )
    public: dict[str, Any] = {"status": "ready", "servers": {"ready": 1, "degraded": 1}}
    assert readiness(overview) == public
    assert readiness(overview, detailed=True) == public | {
        "degraded": [{"server": "b", "state": "waiting", "reason": "it ended", "retryIn": 2.5}],
    }
    whole = readiness(FakeOverview(make_snapshot("a", UpstreamState.READY)), detailed=True)
    assert whole == {"status": "ready", "servers": {"ready": 1, "degraded": 0}}


def test_the_reason_of_a_degraded_server_is_short() -> None:
    overview = FakeOverview(make_snapshot("b", UpstreamState.FAILED, "x" * 1000))
    (degraded,) = readiness(overview, detailed=True)["degraded"]
    assert len(degraded["reason"]) == MAX_REASON_CHARS
