"""What a policy says of a tool that is only named, for the commands that ask it.

    TOOL ──> which server would offer it, to go by its prefix ──> What ──> Standing

Refuses to start anything: a tool that only its server could tell more about is not judged here.
"""

from trunkline.config import Config
from trunkline.mcp.offer import Kind
from trunkline.routing.naming import SEPARATOR
from trunkline.routing.policy import KIND_NAMES, Policy

KINDS = {name: kind for kind, name in KIND_NAMES.items()}
"""The kinds of offers, by what people call them."""


def owner_of(config: Config, name: str) -> str | None:
    """Return the one server that could offer a tool or prompt of this name, None if not known."""
    able = [
        server.name
        for server in config.servers
        if not server.disabled
        and (not server.shown_prefix or name.startswith(server.shown_prefix + SEPARATOR))
    ]
    return able[0] if len(able) == 1 else None


def name_suffices(policy: Policy, kind: Kind, owner: str | None) -> bool:
    """Tell whether what rules read of an offer is known without asking its server."""
    known = owner is not None and kind in (Kind.TOOL, Kind.PROMPT)
    return "annotations" not in policy.reads and (known or "backend" not in policy.reads)
