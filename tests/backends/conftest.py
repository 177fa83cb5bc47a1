"""Backends are tested with no more patience than the gateway."""

from tests.gateway.conftest import no_delays

__all__ = ["no_delays"]
