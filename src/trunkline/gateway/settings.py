"""Settings: what the configuration says about one backend."""

from typing import NamedTuple


class Settings(NamedTuple):
    """What the configuration says about one backend."""

    name: str
    prefix: str
    timeout: float = 60.0
    start_timeout: float = 60.0
    max_restarts: int | None = None
    max_in_flight: int = 64
    max_conversations: int = 4
    max_queue: int = 1024
    """How many calls may wait, beside those that it works on."""
    breaker_threshold: int = 5
    breaker_recovery: float = 30.0
    ping_interval: float = 30.0
