"""What commands ask a running gateway for: its catalogue, and MCP sessions."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import OPERATOR, config
from tests.tasks import hang_guard
from trunkline.app import control, local_clients
from trunkline.app.application import App
from trunkline.app.control import ControlLimits, open_socket, serve_control, session_path
from trunkline.app.local_clients import (
    CatalogReport,
    LocalIdentity,
    build_local_commands,
    build_session_handler,
    find_principal,
    open_session,
)
from trunkline.config import load_config
from trunkline.jsonrpc import Connection, ConnectionLost, RpcError, from_raw
from trunkline.mcp.identity import Principal
from trunkline.mcp.negotiation import initialize_params
from trunkline.mcp.versions import LATEST_SESSION_REVISION
from trunkline.process_access import Ancestor
from trunkline.stdio.stream import StreamTransport

HELLO = initialize_params(LATEST_SESSION_REVISION, {}, {"name": "test", "version": "1"})


@pytest.fixture
def folder() -> Generator[Path]:
    """Return a socket folder with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        yield Path(parent) / "trunkline"


@asynccontextmanager
async def serving(
    tmp_path: Path, folder: Path, limits: ControlLimits | None = None
) -> AsyncGenerator[tuple[App, Path]]:
    """Serve a gateway with the operator tools; yield it and its control socket."""
    app = App(load_config(Path(config(tmp_path, OPERATOR)), {}))
    async with (
        hang_guard(),
        app.running() as gateway,
        serve_control(
            build_local_commands(app),
            folder,
            app.report,
            limits,
            serve_session=build_session_handler(app),
        ) as path,
    ):
        await gateway.registry.wait_complete()
        yield app, path


async def exchange(channel: StreamTransport, *messages: Any) -> list[Any]:
    """Send messages, and return what arrives until the other side closes the connection."""
    for message in messages:
        await channel.send(json.dumps(message).encode())
    found: list[Any] = []
    while (payload := await channel.receive()) is not None:
        found.append(json.loads(payload))
    await channel.aclose()
    return found


async def test_a_session_is_that_of_the_identity_and_ends_with_its_connection(
    tmp_path: Path, folder: Path
) -> None:
    identity = LocalIdentity(subject="ann", roles=("dev",))
    async with serving(tmp_path, folder) as (app, path):
        async with open_session(path, identity) as (channel, label):
            assert label == "local as ann"
            async with Connection(channel) as connection:
                await connection.call("initialize", HELLO)
                (session,) = app.gateway.sessions
                assert session.principal == Principal(
                    "local as ann", "ann", ("dev",), label="local as ann"
                )
        while app.gateway.sessions:
            await asyncio.sleep(0)
        assert not session_path(folder / "x.sock").exists()
    assert list(folder.iterdir()) == []


async def test_roles_without_a_name_are_those_of_the_local_user(tmp_path: Path) -> None:
    app = App(load_config(Path(config(tmp_path, OPERATOR)), {}))
    for identity in (LocalIdentity(roles=("a",)), LocalIdentity(subject="local", roles=("a",))):
        assert await find_principal(app, identity) == Principal("local", roles=("a",))
    assert await find_principal(app, LocalIdentity()) == Principal("local")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "connect", "params": {"uid": 0}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "connect", "params": {"roles": [1]}}, -32602),
        ([{"jsonrpc": "2.0", "id": 1, "method": "connect"}], -32600),
        ("connect", -32600),
    ],
)
async def test_without_a_valid_connect_request_there_is_no_session(
    tmp_path: Path, folder: Path, message: Any, code: int
) -> None:
    async with serving(tmp_path, folder) as (app, path):
        found = await exchange(await open_socket(session_path(path)), message)
        assert [each["error"]["code"] for each in found] == [code]
        assert app.gateway.sessions == frozenset()


async def test_connect_needs_no_params(tmp_path: Path, folder: Path) -> None:
    async with serving(tmp_path, folder) as (_, path):
        channel = await open_socket(session_path(path))
        await channel.send(b'{"jsonrpc":"2.0","id":1,"method":"connect"}')
        assert json.loads(await channel.receive() or b"")["result"] == {"label": "local"}
        await channel.aclose()


async def test_a_connection_without_a_request_is_closed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_clients, "CONNECT_TIMEOUT", 0.05)
    async with serving(tmp_path, folder) as (_, path):
        silent = await open_socket(session_path(path))
        assert await exchange(silent) == []
        gone = await open_socket(session_path(path))
        await gone.aclose()


async def test_the_number_of_sessions_is_limited(tmp_path: Path, folder: Path) -> None:
    limits = ControlLimits(max_sessions=1)
    async with serving(tmp_path, folder, limits) as (_, path):
        async with open_session(path, LocalIdentity()):
            with pytest.raises(RpcError, match=r"too many commands .* at once \(1\); try again"):
                async with open_session(path, LocalIdentity()):
                    raise AssertionError
        # The first one has ended, or is about to.
        while True:
            try:
                async with open_session(path, LocalIdentity()):
                    return
            except RpcError:
                await asyncio.sleep(0)


async def test_a_descendant_of_the_gateway_gets_no_session(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = [Ancestor(1234567, "server"), Ancestor(os.getpid(), "trunkline:main")]

    def find(_: int) -> list[Ancestor]:
        return chain

    async with serving(tmp_path, folder) as (app, path):
        monkeypatch.setattr(control, "find_peer_ancestors", find)
        with pytest.raises(RpcError, match="servers must not control gateways"):
            async with open_session(path, LocalIdentity()):
                raise AssertionError
        assert app.gateway.sessions == frozenset()


async def test_a_gateway_that_stops_ends_its_sessions(tmp_path: Path, folder: Path) -> None:
    async with serving(tmp_path, folder) as (_, path):
        connecting = open_session(path, LocalIdentity())
        channel, _ = await connecting.__aenter__()
    assert await channel.receive() is None
    await connecting.__aexit__(None, None, None)
    with pytest.raises(FileNotFoundError):
        async with open_session(path, LocalIdentity()):
            raise AssertionError


async def test_a_gateway_that_does_not_answer_connect_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: StreamTransport) -> None:
        await asyncio.Event().wait()

    async def close(_: StreamTransport) -> None:
        return

    monkeypatch.setattr(local_clients, "CONNECT_TIMEOUT", 0.05)
    async with serve_control({}, folder, serve_session=hang) as path:
        with pytest.raises(ConnectionLost, match=r"did not answer within 0\.05 s"):
            async with open_session(path, LocalIdentity()):
                raise AssertionError
    monkeypatch.setattr(local_clients, "CONNECT_TIMEOUT", 30.0)
    async with serve_control({}, folder, serve_session=close) as path:
        with pytest.raises(ConnectionLost):
            async with open_session(path, LocalIdentity()):
                raise AssertionError


async def test_the_catalogue_is_that_of_the_gateway_or_of_one_server_and_bounded(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, folder) as (_, path):

        async def ask(**params: Any) -> CatalogReport:
            params = {"identity": {}, **params}
            return from_raw(await control.send_command(path, "catalog", params), CatalogReport)

        report = await ask()
        assert [tool.name for tool in report.tools] == ["me__status", "me__logs"]
        assert (report.tools[0].native, report.tools[0].disabled) == ("status", False)
        assert [server.state for server in report.servers] == ["ready"]
        assert (await ask(server="other")).tools == ()
        monkeypatch.setattr(local_clients, "MAX_CATALOG_BYTES", 100)
        with pytest.raises(RpcError, match="too large; name a server"):
            await ask()
