"""Real clients of each era before real servers of the other: whatever is asked, told, stopped."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from mcp.client.subscriptions import ResourceUpdated

from outside.clients import DOCUMENT, ENVELOPE, WEB_DOCUMENT, client, sample, text
from outside.crossing import (
    Person,
    expect_all,
    expect_everything,
    over_stdio,
    roam,
    walk_python,
    walk_python_1,
    walk_typescript,
)
from outside.gateway import BIN, Gateway, Servers, configure, everything, gateway, sdk
from outside.program import HERE, PYTHON_1, alive

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

OLD, NEW = ("old", "old-web"), ("new", "new-web")
"""A server of each era as a child, and by HTTP."""

EVERY = ("every", "every-web")
"""Server-everything, likewise; it shakes hands."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    """Servers of both eras, over stdio and HTTP; none of those over stdio is left in the end."""
    mark = str(tmp_path_factory.mktemp("crossing"))  # an argument that none of them minds
    async with sdk(1) as (_, old), sdk(2) as (_, new), everything("streamableHttp") as (_, web):
        yield {
            "old": {
                "command": str(PYTHON_1),
                "args": [str(HERE / "sdk1_server.py"), "stdio", "0", mark],
            },
            "old-web": {"url": old},
            "new": {
                "command": sys.executable,
                "args": [str(HERE / "sdk_server.py"), "stdio", mark],
            },
            "new-web": {"url": new, "era": "envelope"},
            "every": {
                "command": "node",
                "args": [str(BIN / "mcp-server-everything"), "stdio", mark],
            },
            "every-web": {"url": web},
        }
    assert alive(mark) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path_factory.mktemp("gateway"), servers) as started:
        yield started


Reach: TypeAlias = Callable[..., str | list[str]]


@pytest.fixture(params=["stdio", "http"])
def reach(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Reach:
    """Return a way to reach servers: the command of a gateway, or the URL of one that has all."""
    if request.param == "http":
        house = request.getfixturevalue("house")
        return lambda *_: house.mcp
    return lambda *names: over_stdio(configure(tmp_path, {name: servers[name] for name in names}))


# Envelope clients before servers that shake hands


async def test_the_python_client_in_envelopes(reach: Reach) -> None:
    expect_all(await walk_python(reach(*OLD), ENVELOPE, *OLD), ENVELOPE, *OLD)


async def test_the_typescript_client_in_envelopes(reach: Reach) -> None:
    expect_all(await walk_typescript(reach(*OLD), 2, ENVELOPE, *OLD), ENVELOPE, *OLD)


async def test_the_python_client_before_server_everything(reach: Reach) -> None:
    expect_everything(await roam(reach(*EVERY), *EVERY), *EVERY)


async def test_the_typescript_client_before_server_everything(reach: Reach) -> None:
    found = await walk_typescript(reach(*EVERY), 2, ENVELOPE, *EVERY)
    expect_everything(found, *EVERY)


@pytest.mark.parametrize("server", EVERY)
async def test_server_everything_tells_those_who_listen(house: Gateway, server: str) -> None:
    uri = DOCUMENT if server == "every" else WEB_DOCUMENT.replace("web", server)
    # Who cannot be asked anything shares the conversation in which resources are followed.
    async with client(house.mcp, ENVELOPE) as made:
        async with made.listen(resource_subscriptions=[uri]) as news:
            await text(made, f"{server}__toggle-subscriber-updates")
            assert await anext(news) == ResourceUpdated(uri=uri)
        await text(made, f"{server}__toggle-subscriber-updates")


async def test_server_everything_logs_in_the_course_of_a_call(house: Gateway) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    options = {"logging_callback": heard.put, "log_level": "debug"}
    async with client(house.mcp, ENVELOPE, **options) as made:
        await text(made, "every__toggle-simulated-logging")
        assert "message" in (await heard.get()).data
        await text(made, "every__toggle-simulated-logging")


@pytest.mark.parametrize("server", EVERY)
async def test_server_everything_is_told_of_a_call_that_is_given_up(
    house: Gateway, server: str
) -> None:
    began = asyncio.Event()

    async def progressed(*_: Any) -> None:
        began.set()

    tool, long = f"{server}__trigger-long-running-operation", {"duration": 60, "steps": 600}
    async with client(house.mcp, ENVELOPE) as made:
        held = asyncio.create_task(made.call_tool(tool, long, progress_callback=progressed))
        await began.wait()
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        assert await text(made, f"{server}__echo", message="on") == "Echo: on"


# Handshake clients before servers that know envelopes


async def test_the_python_client_that_shakes_hands(reach: Reach) -> None:
    expect_all(await walk_python(reach(*NEW), "legacy", *NEW), "legacy", *NEW)


async def test_the_python_client_of_the_first_generation(reach: Reach) -> None:
    expect_all(await walk_python_1(reach(*NEW), *NEW), "legacy", *NEW)


@pytest.mark.parametrize("generation", [1, 2])
async def test_the_typescript_client_that_shakes_hands(reach: Reach, generation: int) -> None:
    expect_all(await walk_typescript(reach(*NEW), generation, "legacy", *NEW), "legacy", *NEW)


# Several at once


@pytest.mark.parametrize("server", [*OLD, *NEW])
async def test_each_is_asked_about_its_own_call(house: Gateway, server: str) -> None:
    together = asyncio.Barrier(3)

    async def use(name: str, mode: str) -> str:
        async with Person(name, together).using(house.mcp, mode) as made:
            return await text(made, f"{server}__twice", name=name)

    people = {"Ada": ENVELOPE, "Bob": ENVELOPE, "Cyd": "legacy"}
    said = await asyncio.gather(*(use(name, mode) for name, mode in people.items()))
    assert said == [f"{name}: First{name} Second{name}" for name in people]


# What a client cannot be asked


@pytest.mark.parametrize("server", OLD)
async def test_a_call_that_needs_what_the_client_cannot_says_so(
    house: Gateway, server: str
) -> None:
    async with client(house.mcp, ENVELOPE, sampling_callback=sample) as made:
        assert await text(made, f"{server}__think") == "a sample"
        result = await made.call_tool(f"{server}__choose", {})
        assert result.is_error
