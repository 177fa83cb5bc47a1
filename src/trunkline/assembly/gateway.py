"""The gateway as the settings have it: what it says of itself, and what it parks."""

from trunkline import __version__
from trunkline.config import Config
from trunkline.gateway.parking import Limits
from trunkline.gateway.session import Identity


def identity_of(config: Config) -> Identity:
    """Return what the settings have the gateway say of itself."""
    settings = config.gateway
    return Identity(settings.name, __version__, settings.instructions, settings.strict_lifecycle)


def parking_of(config: Config) -> Limits:
    """Return what the settings say about calls that wait for their clients."""
    settings = config.gateway
    return Limits(settings.park_ttl, settings.max_parked, settings.max_parked_per_principal)
