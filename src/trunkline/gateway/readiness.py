"""Readiness: whether the gateway can be used, and which of its backends cannot.

It is ready once the catalogue has been published, which is when every backend has been ready or
has failed once, and for as long as one of them takes calls: one bad backend is one bad backend.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from trunkline.gateway.upstream import Snapshot, State

MAX_REASON = 200
"""How much of what a backend says is shown."""

Conceal = Callable[[str, str], str]
"""Takes the name of a backend and a text; returns it without what that was given in confidence."""


def as_it_is(_: str, text: str) -> str:
    """Conceal nothing."""
    return text


class Backends(Protocol):
    """All backends, as far as readiness goes."""

    @property
    def started(self) -> bool:
        """Tell whether every backend has been ready, or has failed, once."""
        ...

    def snapshot(self) -> Iterable[Snapshot]:
        """Return how all of them are."""
        ...


def readiness(backends: Backends, conceal: Conceal = as_it_is) -> dict[str, Any]:
    """Return `status`, `reasons` if it is not ready, and the `degraded` if there are any."""
    snapshots = tuple(backends.snapshot())
    degraded = [_told(each, conceal) for each in snapshots if each.state is not State.READY]
    if not snapshots:
        reasons = ["no servers are configured"]
    elif not backends.started:
        names = [each["server"] for each in degraded if each["state"] in ("idle", "starting")]
        reasons = ["the catalogue has not been published yet: waiting for " + ", ".join(names)]
    elif len(degraded) == len(snapshots):
        reasons = ["no server is ready"]
    else:
        reasons = []
    found: dict[str, Any] = {"status": "not_ready" if reasons else "ready"}
    if reasons:
        found["reasons"] = reasons
    if degraded:
        found["degraded"] = degraded
    return found


def _told(backend: Snapshot, conceal: Conceal) -> dict[str, Any]:
    found: dict[str, Any] = {"server": backend.name, "state": backend.state.value}
    if backend.error is not None:
        found["reason"] = conceal(backend.name, backend.error)[:MAX_REASON]
    if backend.retry_in is not None:
        found["retryIn"] = backend.retry_in
    return found
