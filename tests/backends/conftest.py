"""Tests of backends use the delays of the gateway tests."""

from tests.gateway.conftest import no_delays

__all__ = ["no_delays"]
