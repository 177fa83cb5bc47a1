"""One gateway over HTTP in front of real servers, shared by the tests that only call it."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from outside.gateway import EVERYTHING, UNREACHABLE_URL, Gateway, Servers, everything, gateway, sdk
from outside.program import BIN

# A background job of a shell ignores SIGINT, and so would the programs that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "hello.txt").write_text("hello from a file\n")
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers(files: Path) -> AsyncIterator[Servers]:
    """Two servers over stdio, two over HTTP, one of each protocol, and one that does not exist."""
    async with everything("streamableHttp") as (_, web), sdk(2) as (_, modern):
        yield {
            "everything": EVERYTHING,
            "fs": {"command": "node", "args": [str(BIN / "mcp-server-filesystem"), str(files)]},
            "web": {"url": web},
            "sdk": {"url": modern},
            "broken": {"url": UNREACHABLE_URL},
        }


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def site(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path_factory.mktemp("gateway"), servers) as started:
        yield started
