"""Snapshot: one backend at one moment, for those who operate the gateway."""

from enum import StrEnum
from typing import NamedTuple

from trunkline.routing.breaker import Circuit


class State(StrEnum):
    """How a backend is."""

    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    CIRCUIT_OPEN = "circuit_open"
    HALF_OPEN = "half_open"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


CIRCUITS = {
    Circuit.CLOSED: State.READY,
    Circuit.OPEN: State.CIRCUIT_OPEN,
    Circuit.HALF_OPEN: State.HALF_OPEN,
}
"""How one that is ready is, by its circuit."""


class Snapshot(NamedTuple):
    """One backend at one moment, for those who operate the gateway."""

    name: str
    state: State
    version: str | None
    restarts: int
    in_flight: int
    offers: int
    error: str | None
    retry_in: float | None
    conversations: int = 0
    """How many there are beside the first."""
    left_out: tuple[str, ...] = ()
    """What nobody could use of what it lists, and why."""
