"""The instructions of servers: which clients get them, and in which form."""

import asyncio
from typing import Any

import pytest

from tests.gateway.governed import allow, deny, governed
from tests.gateway.servers import (
    NO_GRACE,
    Server,
    SessionClient,
    add,
    hello,
    make_gateway,
    one_tool,
    running,
    session_client,
)
from tests.gateway.stateless_callers import StatelessCaller, StatelessScriptedServer
from tests.gateway.test_snapshots import slow, started, warm
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.stores import MemoryListingStore, StoredListing
from trunkline.mcp.instructions import MAX_SERVER_CHARS
from trunkline.routing.policy import Policy
from trunkline.routing.visibility import Visibility


def instructing(text: str | None, server: Server | None = None) -> Server:
    """Return a server with one tool and these instructions, whatever its protocol."""
    server = server or one_tool("t")
    method = "server/discover" if isinstance(server, StatelessScriptedServer) else "initialize"
    common: dict[str, Any] = {"capabilities": {"tools": {}}, "instructions": text}
    server.methods[method] = lambda _: (
        {"protocolVersion": "2025-11-25", "serverInfo": {}, **common}
        if method == "initialize"
        else {"supportedVersions": ["2026-07-28"], "resultType": "complete", **common}
    )
    return server


async def instructions(gateway: Gateway) -> str | None:
    """Return what a new client of each protocol gets; both get the same."""
    discovered = await StatelessCaller(gateway).ask("server/discover")
    async with SessionClient(gateway) as user:
        initialized = await user.hello()
    assert initialized.get("instructions") == discovered.get("instructions")
    return initialized.get("instructions")


def section(title: str, prefix: str, text: str) -> str:
    return f'## {title}\n\nThe names of its tools begin with "{prefix}__" here.\n\n{text}'


async def test_clients_get_the_instructions_of_all_servers_in_the_configured_order() -> None:
    modern = StatelessScriptedServer(tools=[{"name": "t", "inputSchema": {"type": "object"}}])
    servers = instructing("Use b."), instructing("Use a.", modern), instructing(None)
    gateway = Gateway(GatewayIdentity("g", "1", "Be brief."), lambda: 0.0, limits=NO_GRACE)
    for name, server in zip("bac", servers, strict=True):
        add(gateway, name, server, title={"a": "Anna's"}.get(name))
    async with running(gateway, *servers), session_client(gateway):
        assert await instructions(gateway) == "\n\n".join(
            ["Be brief.", section("b", "b", "Use b."), section("Anna's", "a", "Use a.")]
        )


async def test_the_configuration_replaces_or_removes_the_instructions_of_a_server() -> None:
    servers = instructing("Theirs."), instructing("Theirs."), one_tool("t")
    gateway = make_gateway()
    for name, server, own in zip("abc", servers, ("", "Ours.", "Of c."), strict=True):
        add(gateway, name, server, instructions=own, prefix="" if name == "c" else name)
    async with running(gateway, *servers), session_client(gateway):
        assert await instructions(gateway) == f"{section('b', 'b', 'Ours.')}\n\n## c\n\nOf c."


async def test_a_client_gets_no_instructions_of_servers_that_it_may_not_see() -> None:
    policy = Policy([deny("b__*"), allow()])
    servers = {"a": instructing("Use a."), "b": instructing("Use b.")}
    async with governed(policy, **servers) as gateway, session_client(gateway):
        assert await instructions(gateway) == section("a", "a", "Use a.")


async def test_a_server_that_is_not_on_the_surface_gives_no_instructions() -> None:
    servers = {"a": instructing("Use a."), "b": instructing("Use b.")}
    gateway = make_gateway(**servers)
    gateway.registry.set_visibility(Visibility(["b__*"]))
    async with running(gateway, *servers.values()), session_client(gateway):
        assert await instructions(gateway) == section("b", "b", "Use b.")


async def test_instructions_are_limited_masked_and_without_control_characters() -> None:
    server = instructing("a\tb\x1b[2J\r\n s3cret \u202e" + "x" * MAX_SERVER_CHARS)
    gateway = make_gateway()
    gateway.mask_secrets = lambda text: text.replace("s3cret", "[redacted]")
    add(gateway, "s", server)
    async with running(gateway, server), session_client(gateway):
        text = await instructions(gateway)
        assert text is not None
        assert "a\tb\\x1b[2J\n [redacted] \\u202ex" in text
        assert text.endswith("x…")
        assert len(text) < MAX_SERVER_CHARS + 200


async def test_a_server_that_restarts_gives_its_new_instructions_to_later_clients() -> None:
    server = instructing("Old.")
    gateway = make_gateway(s=server)
    async with running(gateway, server), session_client(gateway) as user:
        assert await instructions(gateway) == section("s", "s", "Old.")
        instructing("New.", server)
        await server.crash()
        while server.count("initialize") < 2:
            await asyncio.sleep(0)
        await gateway.registry.wait_complete()
        while not gateway.registry.upstream("s").ready:
            await asyncio.sleep(0)
        assert await instructions(gateway) == section("s", "s", "New.")
        assert await user.ask("ping") == {}


async def test_instructions_come_from_the_snapshot_while_a_server_starts() -> None:
    store = await warm(instructing("Use it."))
    server = one_tool("t")
    hold = slow(server)
    async with started(store, server) as gateway:
        async with SessionClient(gateway) as first:
            # The first client starts the servers, and waits until the snapshots are read.
            answer = await first.ask("initialize", hello())
            assert answer["instructions"] == section("s", "s", "Use it.")
        assert await instructions(gateway) == section("s", "s", "Use it.")
        hold.released.set()
        await gateway.registry.wait_complete()
        while not gateway.registry.upstream("s").ready:
            await asyncio.sleep(0)
        assert await instructions(gateway) is None  # the server says nothing any more


async def test_a_client_does_not_wait_for_the_instructions_of_a_server_that_starts() -> None:
    server = one_tool("t")
    hold = slow(server)
    async with started(MemoryListingStore(), server) as gateway:
        assert await instructions(gateway) is None
        hold.answer = hold.answer | {"instructions": "Use it."}
        hold.released.set()
        await gateway.registry.wait_complete()
        assert await instructions(gateway) == section("s", "s", "Use it.")


@pytest.mark.parametrize("text", [7, ["x"], " ", ""])
async def test_instructions_that_are_no_text_are_ignored(text: Any) -> None:
    server = instructing(text)
    async with running(make_gateway(s=server), server) as gateway, session_client(gateway):
        assert await instructions(gateway) is None


def test_a_snapshot_without_instructions_can_be_read() -> None:
    assert StoredListing().instructions is None
