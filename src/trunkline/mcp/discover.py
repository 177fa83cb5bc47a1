"""`server/discover`, from both sides: what a server of the envelope era says about itself.

Refuses to judge which era a server belongs to: see `probe`.
"""

from typing import Any, NamedTuple

from trunkline.jsonrpc import Raw, from_raw, members
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.envelope import SERVER
from trunkline.mcp.versions import ENVELOPE_VERSIONS


class Discovery(NamedTuple):
    """What a server answered."""

    versions: tuple[str, ...]
    capabilities: dict[str, Any]
    server: Raw
    instructions: str | None


def discovery(capabilities: object, server: object, instructions: str | None) -> dict[str, Any]:
    """Return the result of a `server/discover`."""
    answer: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": list(ENVELOPE_VERSIONS),
        "capabilities": capabilities,
        **Freshness().members(),
        "_meta": {SERVER: server},
    }
    return answer if instructions is None else answer | {"instructions": instructions}


def read_discovery(result: Raw) -> Discovery:
    """Read the result of a `server/discover`; raises ValueError where it is none."""
    found = members(result)
    if "supportedVersions" not in found:
        raise ValueError("expected 'supportedVersions' in the answer to server/discover")
    versions = from_raw(found["supportedVersions"], list[str])
    capabilities = from_raw(found.get("capabilities", Raw(b"{}")), dict[str, Any])
    instructions = from_raw(found.get("instructions", Raw(b"null")), object)
    meta = from_raw(found.get("_meta", Raw(b"{}")), dict[str, Raw])
    return Discovery(
        tuple(versions),
        capabilities,
        meta.get(SERVER, Raw(b"{}")),
        instructions if isinstance(instructions, str) else None,
    )
