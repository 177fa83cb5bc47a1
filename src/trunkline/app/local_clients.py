"""Serves the user's commands: the catalogue, and an MCP session for a call.

    trunkline tools, find ──PID.sock──> `catalog` ──> CatalogReport
    trunkline call ──PID.mcp──> `connect` {identity} ──> Principal ──> Gateway.serve

A call passes the same checks as the calls of all clients: visibility, policy, limits, kill switches
and arguments. It is in the audit log, too. Without a running gateway, a command uses these
functions in its own process.

Invariants:
1. A command acts as the local user, as a token says, or in the place of a caller whom it names. The
   records of the last kind name both: `local as ann`.
2. The `connect` request comes first, within a time limit. Without it there is no session.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import Meta, Struct

from trunkline import __version__
from trunkline.app.application import REFUSED_CODE, App
from trunkline.app.control import (
    CONNECT_METHOD,
    ServerStatus,
    SessionHandler,
    open_socket,
    server_statuses,
    session_path,
)
from trunkline.config.auth_table import TOKEN_VARIABLE
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    UNSET,
    Called,
    ConnectionLost,
    Failed,
    Peer,
    Raw,
    RemoteProtocolError,
    Request,
    Returned,
    RpcError,
    from_raw,
    to_raw,
)
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller, Principal
from trunkline.mcp.versions import LATEST_SESSION_REVISION
from trunkline.stdio.stream import StreamTransport

# Seconds that a command has for `connect`; a gateway may fetch signing keys meanwhile.
CONNECT_TIMEOUT = 10.0

# The size of a CatalogReport, as JSON.
MAX_CATALOG_BYTES = 64 * 1024 * 1024

CLIENT_INFO = {"name": "trunkline-call", "version": __version__}

_MAX_TOKEN_CHARS = 16 * 1024
_Name = Annotated[str, Meta(max_length=256)]


class LocalIdentity(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The identity for which a command acts: from a token, or a subject and its roles."""

    token: Annotated[str, Meta(max_length=_MAX_TOKEN_CHARS)] = ""
    subject: _Name = ""
    roles: Annotated[tuple[_Name, ...], Meta(max_length=64)] = ()

    @property
    def is_given(self) -> bool:
        """Whether the user has chosen an identity."""
        return bool(self.token or self.subject or self.roles)


class CatalogTool(Struct, frozen=True):
    """A tool as clients see it; `native` is the server's name for it."""

    name: str
    server: str
    native: str
    definition: Raw
    disabled: bool = False
    """Whether a kill switch disables it."""


class CatalogReport(Struct, frozen=True):
    """The tools of a gateway, and the state of its servers."""

    tools: tuple[CatalogTool, ...]
    servers: tuple[ServerStatus, ...]


async def find_principal(app: App, identity: LocalIdentity) -> Principal:
    """Return who makes a call; raises ValueError with a remedy if the token is not valid."""
    if not identity.subject and not identity.roles:
        return await app.identify({TOKEN_VARIABLE: identity.token})
    local = LOCAL_PRINCIPAL.id
    if identity.subject in {"", local}:
        return Principal(local, roles=identity.roles)
    label = f"{local} as {identity.subject}"
    # An id of its own: what belongs to the caller itself is out of reach.
    return Principal(label, identity.subject, identity.roles, label=label)


async def read_catalog(
    app: App, identity: LocalIdentity, server: str | None = None
) -> CatalogReport:
    """Return the tools that an identity sees; without one, all. Raises ValueError for its token."""
    registry, principal = app.gateway.registry, LOCAL_PRINCIPAL
    if identity.is_given:
        principal = await find_principal(app, identity)
    visibility = registry.visibility
    caller = Caller(principal, LATEST_SESSION_REVISION, {}, to_raw(CLIENT_INFO))
    check = visibility.disabled_check
    tools = tuple(
        CatalogTool(
            entry.public_name,
            entry.backend,
            entry.native_name,
            entry.definition,
            check is not None and check(caller, entry),
        )
        for entry in registry.catalog.entries(FeatureKind.TOOL)
        if server in {None, entry.backend}
        and (not identity.is_given or visibility.is_visible(caller, entry))
    )
    return CatalogReport(tools, server_statuses(app))


def build_local_commands(app: App) -> dict[str, Callable[..., Any]]:
    """Return the commands of the control socket about tools."""

    async def catalog(identity: LocalIdentity, server: str | None = None) -> Raw:
        await app.gateway.registry.wait_startup()
        try:
            report = to_raw(await read_catalog(app, identity, server))
        except ValueError as error:
            raise RpcError(REFUSED_CODE, str(error)) from None
        if len(report) > MAX_CATALOG_BYTES:
            raise RpcError(
                REFUSED_CODE, "the definitions of all tools are too large; name a server"
            )
        return report

    return {"catalog": catalog}


def build_session_handler(app: App) -> SessionHandler:
    """Return the function that serves the MCP session of a command."""

    async def serve(channel: StreamTransport) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                principal = await _accept(app, channel)
        except (TimeoutError, ConnectionLost, RemoteProtocolError):
            return
        if principal is not None:
            await app.gateway.serve(channel, principal)

    return serve


async def _accept(app: App, channel: StreamTransport) -> Principal | None:
    """Answer the `connect` request; return the principal, or None if it is refused."""
    payload = await channel.receive()
    if payload is None:
        return None
    peer, principal = Peer("command", batch_policy="reject"), None
    for event in peer.receive(payload):
        if isinstance(event, Called):
            try:
                principal = await _read_principal(app, event.request)
                peer.respond(event, {"label": principal.label})
            except RpcError as error:
                peer.respond_error(event, error)
    while (answer := peer.next_payload()) is not None:
        await channel.send(answer)
    return principal


async def _read_principal(app: App, request: Request) -> Principal:
    if request.method != CONNECT_METHOD:
        raise RpcError(INVALID_PARAMS, f"expected {CONNECT_METHOD!r} first")
    try:
        params = to_raw({}) if request.params is UNSET else request.params
        identity = from_raw(cast("Raw", params), LocalIdentity)
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
    try:
        return await find_principal(app, identity)
    except ValueError as error:
        raise RpcError(REFUSED_CODE, str(error)) from None


@asynccontextmanager
async def open_session(
    control_path: Path, identity: LocalIdentity
) -> AsyncGenerator[tuple[StreamTransport, str]]:
    """Connect to a gateway; yield the transport of an MCP session, and who the caller is there.

    Raises OSError, ConnectionLost, or RpcError if the gateway refuses.
    """
    channel = await open_socket(session_path(control_path))
    try:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                label = await _connect(channel, identity)
        except TimeoutError:
            reason = f"the gateway did not answer within {CONNECT_TIMEOUT:g} s"
            raise ConnectionLost(reason) from None
        yield channel, label
    finally:
        await channel.aclose()


async def _connect(channel: StreamTransport, identity: LocalIdentity) -> str:
    peer = Peer("gateway")
    peer.call(CONNECT_METHOD, to_raw(identity))
    await channel.send(peer.next_payload() or b"")
    answer = await channel.receive()
    for event in () if answer is None else peer.receive(answer):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Returned):
            return str(from_raw(event.result, dict[str, Any])["label"])
    raise ConnectionLost("the gateway closed the connection")
