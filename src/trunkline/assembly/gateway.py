"""The gateway as the settings have it: what it says of itself, what it parks, and its servers."""

from trunkline import __version__
from trunkline.config import Config, ServerSettings
from trunkline.gateway.parking import Limits
from trunkline.gateway.session import Identity
from trunkline.gateway.upstream import Settings


def identity_of(config: Config) -> Identity:
    """Return what the settings have the gateway say of itself."""
    settings = config.gateway
    return Identity(settings.name, __version__, settings.instructions, settings.strict_lifecycle)


def parking_of(config: Config) -> Limits:
    """Return what the settings say about calls that wait for their clients."""
    settings = config.gateway
    return Limits(settings.park_ttl, settings.max_parked, settings.max_parked_per_principal)


def settings_of(server: ServerSettings) -> Settings:
    """Return what the settings say about a server, whatever it is."""
    return Settings(
        server.name,
        server.name if server.prefix is None else server.prefix,
        server.timeout,
        server.start_timeout,
        server.max_restarts,
        server.max_in_flight,
        server.max_conversations,
    )
