"""Who sees what, as the settings have it."""

from trunkline.config import Config
from trunkline.routing.view import Sight, View

SHOWN = ("gateway.surface", "auth", "roles", "policy", "kill_switch")
"""The tables and keys on which it depends who sees what: if one differs, lists may."""

LISTED = frozenset(("tools", "prompts", "resources"))
"""The capabilities whose lists differ then."""


def view_of(config: Config, sight: Sight | None = None) -> View:
    """Return what the settings say about who sees what; `sight` knows who may not see all."""
    searches = frozenset(server.name for server in config.servers if server.builtin == "search")
    surface = config.gateway.surface
    if isinstance(surface, str):
        return View(() if surface == "search" else None, searches, sight)
    return View(surface, searches, sight)
