"""Governance with third-party clients: visible tools, and the error for each rejection."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx2
import jwt
import pytest
import pytest_asyncio
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import ProtectedResourceMetadata

from outside.clients import SESSION_REVISION, STATELESS_REVISION, client
from outside.gateway import Gateway, configure, gateway, sdk
from outside.program import HERE, PYTHON_1, run

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

OLD = "2025-06-18"
MODES = {"legacy": SESSION_REVISION, "auto": STATELESS_REVISION}
SECRET = "a secret that has more than 32 bytes"
ISSUER = "https://id.example"
PERMISSIONS = 'permissions = ["tools.execute"]'
DENIED = 'denied_tools = ["*__hold", "me__*"]'
HEAD = f"""
[gateway]
state_dir = "state"
[auth]
mode = ["jwt", "api_key"]
[auth.jwt]
secret_env = "OUTSIDE_SECRET"
issuer = "{ISSUER}"
[roles.admin]
permissions = ["*"]
[roles.dev]
{PERMISSIONS}
{DENIED}
[roles.watcher]
permissions = ["tools.read"]
[limits.tools]
sdk__revision = 1
[[policy]]
deny = "sdk__echo"
when = "has(args.message) && type(args.message) == string && args.message.contains('secret plan')"
"""

KINDS = {
    "not_allowed": (-32003, 4030),
    "rate_limited": (-32004, 4290),
    "disabled": (-32005, 4031),
}
"""The error codes for clients of the session protocol and of the stateless one."""


class ClientKind(NamedTuple):
    """A client, its credentials, and its protocol revision."""

    program: str
    proof: str
    revision: str
    mode: str = "legacy"


CLIENT_KINDS = [
    ClientKind("python2", "key", SESSION_REVISION),
    ClientKind("python2", "minted", STATELESS_REVISION, "auto"),
    ClientKind("python1", "signed", SESSION_REVISION),
    ClientKind("python1", "key", OLD),
    ClientKind("typescript1", "minted", SESSION_REVISION),
    ClientKind("typescript2", "signed", SESSION_REVISION),
    ClientKind("typescript2", "key", STATELESS_REVISION, "auto"),
]


class Place:
    """A gateway with keys and rules, its command line, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site: Gateway
        self.known: dict[ClientKind, dict[str, str]] = {}
        """The headers with which each client authenticates as a developer."""

    async def command(self, *arguments: str, at: bool = True) -> str:
        """Run a trunkline command; return its output."""
        config = ("--config", str(self.folder / "trunkline.toml")) if at else ()
        code, out, err = await run(sys.executable, "-m", "trunkline", *arguments, *config)
        assert code == 0, out + err
        return out.strip()

    def line(self, text: str) -> str:
        """Return the location of a configuration line, as rules are named."""
        path = self.folder / "trunkline.toml"
        return f"{path.name}:{path.read_text().splitlines().index(text) + 1}"

    async def switch(self, *arguments: str) -> None:
        """Disable or revive something by the command line."""
        await self.command(*arguments, "--pid", str(self.site.program.process.pid), at=False)

    async def headers(self, proof: str, subject: str, role: str | None) -> dict[str, str]:
        """Return the header for an API key, a token we issued, or one of another issuer."""
        if proof == "key":
            made = await self.command("key", "add", subject, "--role", str(role))
        elif proof == "minted":
            made = await self.command("token", "mint", "--sub", subject, "--role", str(role))
        else:
            now = int(time.time())
            claims = {
                "iss": ISSUER,
                "aud": "trunkline",
                "sub": subject,
                "iat": now,
                "exp": now + 600,
            }
            made = jwt.encode(claims | ({"role": role} if role else {}), SECRET, "HS256")
        return {"Authorization": f"Bearer {made}"}

    async def records(self, subject: str, count: int) -> list[tuple[Any, ...]]:
        """Return the audit records of a number of calls of a principal, once they are there."""
        found: list[Any] = []
        async with asyncio.timeout(30):
            while len(found) < count:
                output = await self.command("audit", "query", "--subject", subject, "--json")
                found = [each["record"] for each in json.loads(output)]
        members = ("name", "status", "decision", "rule", "revision")
        return [tuple(each.get(member) for member in members) for each in found]


def name_of(client_kind: ClientKind) -> str:
    return f"{client_kind.program}-{client_kind.proof}-{client_kind.revision}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    made = Place(tmp_path_factory.mktemp("governed"))
    # The path of a Unix socket must be short.
    with TemporaryDirectory() as runtime, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", runtime)
        patch.setenv("OUTSIDE_SECRET", SECRET)
        async with sdk(2) as (_, url):
            servers = {
                "sdk": {"url": url},
                "me": {"builtin": "operator", "operator_tools": "all"},
            }
            configure(made.folder, servers, HEAD)
            given = [
                made.headers(client_kind.proof, name_of(client_kind), "dev")
                for client_kind in CLIENT_KINDS
            ]
            made.known = dict(zip(CLIENT_KINDS, await asyncio.gather(*given), strict=True))
            async with gateway(made.folder, servers, HEAD) as made.site:
                await until_ready(made.site)
                yield made


async def until_ready(site: Gateway) -> None:
    async with asyncio.timeout(30), httpx2.AsyncClient() as http:
        while (await http.get(f"{site.place}/readyz")).status_code != 200:
            pass


# Clients


async def ask(
    place: Place, client_kind: ClientKind, headers: dict[str, str], calls: list[Any]
) -> Any:
    """Let a client list all tools and call some of them."""
    url, request_input = (
        place.site.mcp,
        {"headers": headers, "calls": calls, "revision": client_kind.revision},
    )
    if client_kind.program == "python2":
        return await ask_python_2(url, client_kind.mode, headers, calls)
    if client_kind.program == "python1":
        command = [PYTHON_1, HERE / "sdk1_calls.py", url]
    else:
        command = ["node", HERE / "ts_calls.mjs", client_kind.program[-1], client_kind.mode, url]
    code, out, err = await run(*command, json.dumps(request_input))
    assert code == 0, err
    return json.loads(out)


async def ask_python_2(url: str, mode: str, headers: dict[str, str], calls: list[Any]) -> Any:
    async with httpx2.AsyncClient(headers=headers) as http:
        transport: Any = streamable_http_client(url, http_client=http)
        async with client(transport, mode) as made:
            return {
                "revision": made.protocol_version,
                "tools": [tool.name for tool in (await made.list_tools()).tools],
                "answers": [await answer(made, *each) for each in calls],
            }


async def answer(made: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        result = await made.call_tool(tool, arguments)
    except MCPError as error:
        return {"error": error.error.model_dump(mode="json")}
    return {"result": result.model_dump(mode="json", by_alias=True)}


def text(found: dict[str, Any]) -> str:
    assert not found["result"].get("isError"), found
    return found["result"]["content"][0]["text"]


def refusal(found: dict[str, Any], kind: str, revision: str) -> dict[str, Any]:
    """Check for an error of a kind with its code; return its other data."""
    error = found["error"]
    assert (error["data"]["type"], error["code"]) == (
        kind,
        KINDS[kind][revision == STATELESS_REVISION],
    )
    return error["data"]


def expect_unknown(found: dict[str, Any], tool: str) -> None:
    assert found["error"]["code"] == -32602
    assert f"Unknown tool: {tool}" in found["error"]["message"]


def expect_misfit(found: dict[str, Any], revision: str) -> None:
    """Check for invalid arguments: from 2025-11-25 on in the result, for the model."""
    if revision == OLD:
        assert found["error"]["code"] == -32602
        said = found["error"]["message"]
    else:
        assert found["result"]["isError"] is True
        said = found["result"]["content"][0]["text"]
    assert "message" in said
    assert "string" in said


@pytest.mark.parametrize("client_kind", CLIENT_KINDS, ids=name_of)
async def test_a_developer_uses_the_tools_of_the_role_and_all_is_recorded(
    place: Place, client_kind: ClientKind
) -> None:
    subject = name_of(client_kind)
    calls = [
        ("sdk__echo", {"message": "hello"}),
        ("sdk__hold", {}),
        ("nobody__home", {}),
        ("me__status", {}),
        ("me__kill", {"kind": "all"}),
        ("sdk__echo", {"message": "the secret plan"}),
        ("sdk__echo", {"message": 7}),
        ("sdk__revision", {}),
        ("sdk__revision", {}),
    ]
    found = await ask(place, client_kind, place.known[client_kind], calls)
    assert found["revision"] == client_kind.revision
    assert {"sdk__echo", "sdk__revision", "sdk__released"} <= set(found["tools"])
    assert not [name for name in found["tools"] if name == "sdk__hold" or name.startswith("me__")]
    hello, *unknown, plan, misfit, first, second = found["answers"]
    assert text(hello) == "Echo: hello"
    for (tool, _), said in zip(calls[1:5], unknown, strict=True):
        expect_unknown(said, tool)
    refusal(plan, "not_allowed", client_kind.revision)
    expect_misfit(misfit, client_kind.revision)
    assert text(first)
    assert 0 < refusal(second, "rate_limited", client_kind.revision)["retryAfter"] <= 60
    role = f"role dev: tools.execute ({place.line(PERMISSIONS)})"
    hidden = f"role dev: denied_tools ({place.line(DENIED)})"
    rule = f"policy[0] ({place.line('[[policy]]')})"
    assert await place.records(subject, len(calls)) == [
        (*each, client_kind.revision)
        for each in (
            ("sdk__echo", "success", "allow", role),
            ("sdk__hold", "denied", "deny", hidden),
            ("nobody__home", "unknown", None, None),
            ("me__status", "denied", "deny", hidden),
            ("me__kill", "denied", "deny", hidden),
            ("sdk__echo", "denied", "deny", rule),
            ("sdk__echo", "invalid_arguments", "allow", role),
            ("sdk__revision", "success", "allow", role),
            ("sdk__revision", "rate_limited", None, None),
        )
    ]


@pytest.mark.parametrize("mode", MODES)
async def test_a_read_only_role_sees_all_tools_and_calls_none(place: Place, mode: str) -> None:
    headers = await place.headers("signed", f"watcher-{mode}", "watcher")
    client_kind = ClientKind("python2", "signed", MODES[mode], mode)
    found = await ask(
        place, client_kind, headers, [("sdk__echo", {"message": "x"}), ("me__pause", {})]
    )
    assert {"sdk__echo", "sdk__hold", "me__pause"} <= set(found["tools"])
    for said in found["answers"]:
        refusal(said, "not_allowed", MODES[mode])


@pytest.mark.parametrize("role", ["nobody", None])
async def test_an_unknown_role_sees_nothing(place: Place, role: str | None) -> None:
    headers = await place.headers("signed", "stranger", role)
    client_kind = ClientKind("python2", "signed", STATELESS_REVISION, "auto")
    found = await ask(place, client_kind, headers, [("sdk__echo", {"message": "x"})])
    assert found["tools"] == []
    expect_unknown(found["answers"][0], "sdk__echo")


@pytest.mark.parametrize("client_kind", CLIENT_KINDS[:2], ids=name_of)
async def test_a_killed_tool_is_disabled_until_it_is_revived(
    place: Place, client_kind: ClientKind
) -> None:
    headers = await place.headers("signed", "ada", "dev")
    calls = [("sdk__say", {}), ("sdk__echo", {"message": "x"})]
    await place.switch("kill", "tool", "sdk__say")
    try:
        killed, other = (await ask(place, client_kind, headers, calls))["answers"]
    finally:
        await place.switch("revive", "tool", "sdk__say")
    assert refusal(killed, "disabled", client_kind.revision)["what"] == "tool"
    assert text(other) == "Echo: x"
    again, _ = (await ask(place, client_kind, headers, calls))["answers"]
    assert text(again) == "said"


@pytest.mark.parametrize("mode", MODES)
async def test_an_operator_pauses_and_resumes_the_gateway_over_mcp(place: Place, mode: str) -> None:
    client_kind, echo = (
        ClientKind("python2", "signed", MODES[mode], mode),
        ("sdk__echo", {"message": "x"}),
    )
    admin = await place.headers("signed", "root", "admin")
    dev = await place.headers("signed", "ada", "dev")
    found = await ask(place, client_kind, admin, [("me__status", {}), ("me__pause", {}), echo])
    assert {"me__status", "me__pause", "me__resume", "sdk__hold"} <= set(found["tools"])
    status, paused, stopped = found["answers"]
    assert '"sdk"' in json.dumps(status["result"]["structuredContent"])
    text(paused)
    refusal(stopped, "disabled", MODES[mode])
    held = await ask(place, client_kind, dev, [echo])
    assert "sdk__echo" in held["tools"]
    assert refusal(held["answers"][0], "disabled", MODES[mode])["what"] == "pause"
    resumed, status = (
        await ask(place, client_kind, admin, [("me__resume", {}), ("me__status", {})])
    )["answers"]
    text(resumed)
    assert status["result"]["structuredContent"]
    assert text((await ask(place, client_kind, dev, [echo]))["answers"][0]) == "Echo: x"


@pytest.mark.parametrize("mode", MODES)
async def test_without_credentials_the_client_gets_the_metadata_url(
    place: Place, mode: str
) -> None:
    refused: list[httpx2.Response] = []

    async def note(response: httpx2.Response) -> None:
        refused.append(response)

    async with httpx2.AsyncClient(event_hooks={"response": [note]}) as http:
        transport: Any = streamable_http_client(place.site.mcp, http_client=http)
        with pytest.raises(BaseException) as caught:  # noqa: PT011  an MCPError, or a group of them
            async with client(transport, mode) as made:
                await made.list_tools()
        assert not isinstance(caught.value, TimeoutError)
    assert {response.status_code for response in refused} == {401}
    url = refused[0].headers["www-authenticate"].partition('resource_metadata="')[2].split('"')[0]
    async with httpx2.AsyncClient() as http:
        found = ProtectedResourceMetadata.model_validate_json((await http.get(url)).content)
    assert str(found.resource) == place.site.mcp
    assert [str(server).rstrip("/") for server in found.authorization_servers] == [ISSUER]


async def test_the_audit_log_is_intact_at_the_end(place: Place) -> None:
    output = json.loads(await place.command("audit", "verify", "--json"))
    assert output["ok"], output
    denied = json.loads(await place.command("audit", "query", "--status", "denied", "--json"))
    assert denied
    assert {each["record"]["decision"] for each in denied} == {"deny"}
