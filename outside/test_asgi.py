"""The gateway as an ASGI application: alone under uvicorn, and mounted in another application."""

import asyncio
from pathlib import Path

import httpx2
import pytest

from outside.clients import (
    SESSION_REVISION,
    STATELESS_REVISION,
    client,
    text,
    use_python_client_1,
    use_typescript_client,
)
from outside.gateway import Servers, application
from outside.program import alive

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("path", ["/", "/gate"])
async def test_clients_use_every_feature(servers: Servers, tmp_path: Path, path: str) -> None:
    async with application(tmp_path, servers, path) as site:
        for mode, version in (("legacy", SESSION_REVISION), ("auto", STATELESS_REVISION)):
            async with client(site.mcp, mode) as made:
                assert made.protocol_version == version
                assert await text(made, "sdk__echo", message="é") == "Echo: é"
        await use_python_client_1(site, "ws")
        if path == "/":
            await use_typescript_client(site, 1, "sse")  # does not work below another path
        else:
            await use_typescript_client(site, 2, "mcp")
            await use_typescript_client(site, 2, "auto")
        await site.program.end()
        await site.program.says("Application shutdown complete")
    assert alive(str(tmp_path)) == []


async def test_the_surrounding_application_is_not_affected(tmp_path: Path) -> None:
    async with application(tmp_path, {}, "/gate") as site, httpx2.AsyncClient() as http:
        origin = site.place.removesuffix("/gate")
        around, health, nothing = await asyncio.gather(
            http.get(f"{origin}/"), http.get(f"{site.place}/healthz"), http.get(f"{origin}/mcp")
        )
        assert around.text == "hello from the application around it"
        assert (health.status_code, nothing.status_code) == (200, 404)
