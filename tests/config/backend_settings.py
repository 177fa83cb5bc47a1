"""The settings of a server, by its kind, for tests."""

from typing import TypeVar

from trunkline.backends.command import CommandSettings
from trunkline.backends.kind import BackendSettings
from trunkline.backends.url import UrlSettings
from trunkline.config import ServerSettings

Kind = TypeVar("Kind", bound=BackendSettings)


def settings_of(server: ServerSettings, kind: type[Kind]) -> Kind:
    """Return the settings of a server that must be of this kind."""
    assert isinstance(server.backend, kind)
    return server.backend


def command_of(server: ServerSettings) -> CommandSettings:
    """Return the settings of a server with a command."""
    return settings_of(server, CommandSettings)


def url_of(server: ServerSettings) -> UrlSettings:
    """Return the settings of a server with a url."""
    return settings_of(server, UrlSettings)
