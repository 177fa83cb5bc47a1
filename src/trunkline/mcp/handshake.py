"""`initialize`, from both sides: what a client says first, and what a server answers.

Refuses to remember: whether a conversation has begun is the session's knowledge.
"""

from typing import Any, NamedTuple

from trunkline.jsonrpc import Raw, RpcError, from_raw, members
from trunkline.mcp.meta import Params
from trunkline.mcp.versions import HANDSHAKE_VERSIONS, negotiate


class Hello(NamedTuple):
    """What a client said, and the revision that was agreed on."""

    version: str
    capabilities: dict[str, Any]
    client: Raw


class Welcome(NamedTuple):
    """What a server answered."""

    version: str
    capabilities: dict[str, Any]
    server: Raw
    instructions: str | None


def read_hello(params: object) -> Hello:
    """Read the params of `initialize`; raises Invalid params naming the field."""
    given = Params(params)
    version = given.text("protocolVersion")
    capabilities = _object(given, "capabilities")
    client = _object(given, "clientInfo")
    return Hello(negotiate(version), from_raw(capabilities, dict[str, Any]), client)


def hello(version: str, capabilities: object, client: object) -> dict[str, Any]:
    """Return the params of an `initialize`."""
    return {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}


def welcome(
    version: str, capabilities: object, server: object, instructions: str | None
) -> dict[str, Any]:
    """Return the result of an `initialize`."""
    answer: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": capabilities,
        "serverInfo": server,
    }
    return answer if instructions is None else answer | {"instructions": instructions}


def read_welcome(result: Raw) -> Welcome:
    """Read the result of an `initialize`; raises ValueError where it is none."""
    found = members(result)
    version = from_raw(found.get("protocolVersion", Raw(b"null")), object)
    if version not in HANDSHAKE_VERSIONS:
        raise ValueError(f"expected one of {', '.join(HANDSHAKE_VERSIONS)}, got {version!r}")
    capabilities = from_raw(found.get("capabilities", Raw(b"{}")), dict[str, Any])
    instructions = from_raw(found.get("instructions", Raw(b"null")), object)
    return Welcome(
        str(version),
        capabilities,
        found.get("serverInfo", Raw(b"{}")),
        instructions if isinstance(instructions, str) else None,
    )


def _object(given: Params, key: str) -> Raw:
    raw = given.get(key)
    if raw is None:
        raise RpcError.invalid_params(f"missing {key!r}", {"field": key})
    if not bytes(raw).startswith(b"{"):
        raise RpcError.invalid_params(f"expected an object as {key!r}", {"field": key})
    return raw
