"""Backends are tested with no more patience than the gateway."""

from tests.gateway.conftest import no_patience

__all__ = ["no_patience"]
