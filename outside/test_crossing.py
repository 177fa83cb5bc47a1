"""Real clients and servers of different protocols: requests, notifications, cancellation."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from mcp import Client, MCPError
from mcp.client.subscriptions import ResourceUpdated

from outside.clients import DOCUMENT, STATELESS_REVISION, WEB_DOCUMENT, client, sample, text
from outside.crossing import (
    ASKED,
    PLACE,
    ScriptedUser,
    check_all,
    expect_everything,
    over_stdio,
    run_everything_scenario,
    run_python,
    run_python_1,
    run_typescript,
    until_listed,
)
from outside.gateway import BIN, Gateway, Servers, configure, everything, gateway, sdk
from outside.program import HERE, PYTHON_1, Program, alive, free_port, run, running

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

OLD, NEW = ("old", "old-web"), ("new", "new-web")
"""A server of each protocol, as a child and over HTTP."""

TYPESCRIPT = ("ts", "ts-web")
"""A stateless server on the TypeScript SDK, likewise."""

EVERY = ("every", "every-web")
"""Server-everything, likewise; it uses the session protocol."""


@asynccontextmanager
async def typescript() -> AsyncIterator[tuple[Program, str]]:
    """Start a server on the TypeScript SDK 2.x over HTTP; yield it and its URL."""
    port = free_port()
    async with running("node", HERE / "ts_server.mjs", str(port)) as program:
        await program.says("listening")
        yield program, f"http://127.0.0.1:{port}/mcp"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    """Servers of both protocols, over stdio and HTTP; no stdio server is left at the end."""
    mark = str(tmp_path_factory.mktemp("crossing"))  # an argument that all of them ignore

    def child(command: str | Path, *args: str | Path) -> dict[str, Any]:
        return {"command": str(command), "args": [*map(str, args), mark]}

    async with AsyncExitStack() as stack:
        programs = (sdk(1), sdk(2), everything("streamableHttp"), typescript())
        started = await asyncio.gather(*(stack.enter_async_context(each) for each in programs))
        old, new, every, ts = (url for _, url in started)
        yield {
            "old": child(PYTHON_1, HERE / "sdk1_server.py", "stdio", "0"),
            "old-web": {"url": old},
            "alone": child(PYTHON_1, HERE / "sdk1_server.py", "stdio", "0") | {"max_sessions": 0},
            "every": child("node", BIN / "mcp-server-everything", "stdio"),
            "every-web": {"url": every},
            "new": child(sys.executable, HERE / "sdk_server.py", "stdio"),
            "new-web": {"url": new, "protocol": "stateless"},
            "ts": child("node", HERE / "ts_server.mjs", "stdio"),
            "ts-web": {"url": ts},
            "time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]},
            "git": {"command": sys.executable, "args": ["-m", "mcp_server_git"]},
        }
    assert alive(mark) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path_factory.mktemp("gateway"), servers) as started:
        yield started


Reach: TypeAlias = Callable[..., str | list[str]]


@pytest.fixture(params=["stdio", "http"])
def reach(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Reach:
    """Return the command of a gateway in front of these servers, or the URL of one with all."""
    if request.param == "http":
        site = request.getfixturevalue("site")
        return lambda *_: site.mcp
    return lambda *names: over_stdio(configure(tmp_path, {name: servers[name] for name in names}))


# Stateless clients, session servers


async def test_the_stateless_python_client(reach: Reach) -> None:
    check_all(await run_python(reach(*OLD), STATELESS_REVISION, *OLD), STATELESS_REVISION, *OLD)


async def test_the_stateless_typescript_client(reach: Reach) -> None:
    check_all(
        await run_typescript(reach(*OLD), 2, STATELESS_REVISION, *OLD), STATELESS_REVISION, *OLD
    )


async def test_the_stateless_python_client_with_server_everything(reach: Reach) -> None:
    expect_everything(await run_everything_scenario(reach(*EVERY), *EVERY), *EVERY)


async def test_the_stateless_typescript_client_with_server_everything(reach: Reach) -> None:
    found = await run_typescript(reach(*EVERY), 2, STATELESS_REVISION, *EVERY)
    expect_everything(found, *EVERY)


@pytest.mark.parametrize("server", EVERY)
async def test_server_everything_notifies_subscribers(site: Gateway, server: str) -> None:
    uri = DOCUMENT if server == "every" else WEB_DOCUMENT.replace("web", server)
    # Clients without input capabilities share the session with the resource subscriptions.
    async with client(site.mcp, STATELESS_REVISION) as made:
        async with made.listen(resource_subscriptions=[uri]) as news:
            await text(made, f"{server}__toggle-subscriber-updates")
            assert await anext(news) == ResourceUpdated(uri=uri)
        await text(made, f"{server}__toggle-subscriber-updates")


async def test_server_everything_logs_during_a_call(site: Gateway) -> None:
    received: asyncio.Queue[Any] = asyncio.Queue()
    options = {"logging_callback": received.put, "log_level": "debug"}
    async with client(site.mcp, STATELESS_REVISION, **options) as made:
        await text(made, "every__toggle-simulated-logging")
        assert "message" in (await received.get()).data
        await text(made, "every__toggle-simulated-logging")


@pytest.mark.parametrize("server", EVERY)
async def test_a_cancelled_call_does_not_block_server_everything(
    site: Gateway, server: str
) -> None:
    began = asyncio.Event()

    async def progressed(*_: Any) -> None:
        began.set()

    tool, long = f"{server}__trigger-long-running-operation", {"duration": 60, "steps": 600}
    async with client(site.mcp, STATELESS_REVISION) as made:
        held = asyncio.create_task(made.call_tool(tool, long, progress_callback=progressed))
        await began.wait()
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        assert await text(made, f"{server}__echo", message="on") == "Echo: on"


# Session clients, stateless servers


async def test_the_session_python_client(reach: Reach) -> None:
    check_all(await run_python(reach(*NEW), "legacy", *NEW), "legacy", *NEW)


async def test_the_python_client_1(reach: Reach) -> None:
    check_all(await run_python_1(reach(*NEW), *NEW), "legacy", *NEW)


@pytest.mark.parametrize("generation", [1, 2])
async def test_the_session_typescript_client(reach: Reach, generation: int) -> None:
    check_all(await run_typescript(reach(*NEW), generation, "legacy", *NEW), "legacy", *NEW)


async def ask_all(made: Client, server: str) -> str:
    await until_listed(made, f"{server}__ask_all")
    return await text(made, f"{server}__ask_all")


@pytest.mark.parametrize("server", TYPESCRIPT)
async def test_a_typescript_server_requests_all_inputs_at_once(reach: Reach, server: str) -> None:
    user = ScriptedUser()
    user.actions = ["accept"]
    async with user.using(reach(server), "legacy") as made:
        assert await ask_all(made, server) == "42 accept a sample file:///here"
    assert [method for method, _ in user.asked] == [*ASKED[:2], *ASKED[-2:]]


async def test_servers_from_pypi_serve_session_clients(site: Gateway, tmp_path: Path) -> None:
    assert (await run("git", "init", tmp_path))[0] == 0
    async with client(site.mcp, "legacy") as made:
        await until_listed(made, "time__get_current_time", "git__git_status")
        assert "UTC" in await text(made, "time__get_current_time", timezone="UTC")
        assert "No commits" in await text(made, "git__git_status", repo_path=str(tmp_path))


# Concurrent clients


@pytest.mark.parametrize("server", [*OLD, *NEW])
async def test_input_requests_reach_the_client_of_the_call(site: Gateway, server: str) -> None:
    together = asyncio.Barrier(3)

    async def use(name: str, mode: str) -> str:
        async with ScriptedUser(name, together).using(site.mcp, mode) as made:
            return await text(made, f"{server}__twice", name=name)

    modes = {"Ada": STATELESS_REVISION, "Bob": STATELESS_REVISION, "Cyd": "legacy"}
    said = await asyncio.gather(*(use(name, mode) for name, mode in modes.items()))
    assert said == [f"{name}: First{name} Second{name}" for name in modes]


async def test_clients_wait_for_each_other_at_a_server_limited_to_one_session(
    site: Gateway,
) -> None:
    async def use(name: str, mode: str) -> str:
        async with ScriptedUser(name).using(site.mcp, mode) as made:
            return await text(made, "alone__twice", name=name)

    said = await asyncio.gather(
        use("Ada", STATELESS_REVISION), use("Bob", STATELESS_REVISION), use("Cyd", "legacy")
    )
    assert said == [f"{name}: First{name} Second{name}" for name in ("Ada", "Bob", "Cyd")]


# Other cases


@pytest.mark.parametrize("server", OLD)
async def test_a_url_elicitation_error_leads_to_a_second_call(site: Gateway, server: str) -> None:
    user = ScriptedUser()
    async with user.using(site.mcp, STATELESS_REVISION) as made:
        assert await text(made, f"{server}__sign_in_first", name=server) == "welcome"
    ((method, params),) = user.asked
    assert (method, params["mode"], params["url"]) == ("elicitation/create", "url", PLACE)


async def test_a_client_without_a_capability_learns_which_one_is_missing(site: Gateway) -> None:
    async with client(site.mcp, STATELESS_REVISION, sampling_callback=sample) as made:
        for server in OLD:
            assert await text(made, f"{server}__think") == "a sample"
            # The server turns the error into a result.
            assert (await made.call_tool(f"{server}__choose", {})).is_error
            with pytest.raises(MCPError) as refused:
                await made.call_tool(f"{server}__sign_in_first", {"name": f"nobody at {server}"})
            assert refused.value.code == -32021
            assert refused.value.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}
    async with client(site.mcp, "legacy", sampling_callback=sample) as made:
        for server in NEW:
            assert await text(made, f"{server}__think") == "a sample"
            with pytest.raises(MCPError) as refused:
                await made.call_tool(f"{server}__choose", {})
            assert refused.value.code == -32603
            assert refused.value.data["requiredCapabilities"].keys() == {"elicitation"}
