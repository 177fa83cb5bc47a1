"""The gateway as an ASGI application: under uvicorn by itself, and mounted in another's."""

import asyncio
from pathlib import Path

import httpx2
import pytest

from outside.clients import ENVELOPE, HANDSHAKE, client, drive_python_1, drive_typescript, text
from outside.gateway import Servers, application
from outside.program import alive

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("path", ["/", "/gate"])
async def test_clients_use_everything(servers: Servers, tmp_path: Path, path: str) -> None:
    async with application(tmp_path, servers, path) as house:
        for mode, version in (("legacy", HANDSHAKE), ("auto", ENVELOPE)):
            async with client(house.mcp, mode) as made:
                assert made.protocol_version == version
                assert await text(made, "sdk__echo", message="é") == "Echo: é"
        await drive_python_1(house, "ws")
        if path == "/":
            await drive_typescript(house, 1, "sse")  # cannot be used below another path
        else:
            await drive_typescript(house, 2, "mcp")
            await drive_typescript(house, 2, "auto")
        await house.program.end()
        await house.program.says("Application shutdown complete")
    assert alive(str(tmp_path)) == []


async def test_the_application_around_it_stays_what_it_is(tmp_path: Path) -> None:
    async with application(tmp_path, {}, "/gate") as house, httpx2.AsyncClient() as http:
        origin = house.place.removesuffix("/gate")
        around, health, nothing = await asyncio.gather(
            http.get(f"{origin}/"), http.get(f"{house.place}/healthz"), http.get(f"{origin}/mcp")
        )
        assert around.text == "hello from the application around it"
        assert (health.status_code, nothing.status_code) == (200, 404)
