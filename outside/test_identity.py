"""The official Python client authenticates with a bearer token; without one it is rejected."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import ProtectedResourceMetadata

from outside.clients import SESSION_REVISION, STATELESS_REVISION, by_sse, client
from outside.gateway import Gateway, configure, gateway

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

MODES = {"legacy": SESSION_REVISION, "auto": STATELESS_REVISION}
SERVERS = {"me": {"builtin": "operator"}, "search": {"builtin": "search"}}
AUTH = """
[auth]
mode = ["jwt", "api_key"]
[auth.jwt]
secret_env = "OUTSIDE_SECRET"
issuer = "https://id.example"
"""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identity")
    configure(folder, SERVERS, AUTH)
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def guarded(place: Path) -> AsyncIterator[Gateway]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIDE_SECRET", "a secret that has more than 32 bytes")
        async with gateway(place, SERVERS, AUTH) as started:
            yield started


def trunkline(place: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "trunkline", *arguments]
    config = ["--config", str(place / "trunkline.toml")]
    return subprocess.run(
        [*command, *config], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


@pytest.fixture(params=["jwt", "api_key"])
def headers(request: pytest.FixtureRequest, guarded: Gateway, place: Path) -> dict[str, str]:
    """The credentials of a client: a token or an API key that the gateway issued."""
    if request.param == "jwt":
        token = trunkline(place, "token", "mint", "--sub", "ada", "--role", "dev")
    else:
        token = trunkline(place, "key", "add", f"k{token_hex(8)}", "--role", "dev")
    return {"Authorization": f"Bearer {token}"}


async def until_known(guarded: Gateway, headers: dict[str, str]) -> None:
    """Wait until the gateway has read its key file again."""
    async with httpx2.AsyncClient(headers=headers) as http:
        while (await http.get(f"{guarded.place}/nowhere")).status_code != 404:
            pass


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_with_a_token_is_served(
    guarded: Gateway, headers: dict[str, str], mode: str
) -> None:
    await until_known(guarded, headers)
    async with httpx2.AsyncClient(headers=headers) as http:
        transport: Any = streamable_http_client(guarded.mcp, http_client=http)
        async with client(transport, mode) as made:
            assert made.protocol_version == MODES[mode]
            assert "me__status" in {tool.name for tool in (await made.list_tools()).tools}
            status = await made.call_tool("me__status", {})
            assert "me" in json.dumps(status.structured_content)


async def test_a_session_client_with_a_token_is_served(
    guarded: Gateway, headers: dict[str, str]
) -> None:
    await until_known(guarded, headers)
    async with client(by_sse(guarded.sse, headers=headers), "legacy") as made:
        assert (await made.list_tools()).tools


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer nonsense"}])
async def test_a_client_without_a_valid_token_is_rejected(
    guarded: Gateway, sent: dict[str, str], mode: str
) -> None:
    async with httpx2.AsyncClient(headers=sent) as http:
        transport: Any = streamable_http_client(guarded.mcp, http_client=http)
        with pytest.raises(BaseException) as caught:  # noqa: PT011  an MCPError, or a group of them
            async with client(transport, mode) as made:
                await made.list_tools()
        assert not isinstance(caught.value, TimeoutError)


async def test_the_challenge_names_the_resource_metadata(guarded: Gateway) -> None:
    async with httpx2.AsyncClient() as http:
        accept = {"accept": "application/json, text/event-stream"}
        refused = await http.post(guarded.mcp, json={}, headers=accept)
        assert refused.status_code == 401
        challenge = refused.headers["www-authenticate"]
        url = challenge.partition('resource_metadata="')[2].partition('"')[0]
        found = ProtectedResourceMetadata.model_validate_json((await http.get(url)).content)
        assert str(found.resource) == guarded.mcp
        (server,) = found.authorization_servers
        assert str(server).rstrip("/") == "https://id.example"
