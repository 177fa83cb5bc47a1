"""The gateway behind nginx, HAProxy and Caddy, configured as the manual shows."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import pytest_asyncio
import websockets
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from outside.clients import SESSION_REVISION, STATELESS_REVISION, client, text
from outside.gateway import Gateway, configure, gateway
from outside.program import HERE, RUN_SECONDS, free_port, run, running
from outside.proxy import NAME, Certificate, Proxy, make_certificate, proxy
from tests.guides.manual import ROOT
from tests.guides.reader import matches, read_blocks

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

PAGE = ROOT / "docs" / "guides" / "proxy.md"
BLOCKS = read_blocks(PAGE)
KINDS = ["nginx", "haproxy", "caddy"]
MODES = {"legacy": SESSION_REVISION, "auto": STATELESS_REVISION}
SERVERS = {"sdk": {"command": sys.executable, "args": [str(HERE / "sdk_server.py"), "stdio"]}}
LIMITS = """\
sse_ping_interval = 0.2
max_body = 65536
"""
STATE = """\
[gateway]
state_dir = "state"
"""
PUBLIC = f"https://{NAME}"
MAX_BODY = 65536
HELLO = {
    "protocolVersion": SESSION_REVISION,
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def block(language: str, number: int = 0) -> str:
    """Return a block of the page, by its language."""
    return [each.text for each in BLOCKS if each.language == language][number]


def rpc(method: str, params: dict[str, Any] | None = None, id: int | None = 1) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    return message if id is None else message | {"id": id}


class Site(NamedTuple):
    """A gateway behind proxies."""

    gateway: Gateway
    proxies: dict[str, Proxy]
    folder: Path
    key: str

    @property
    def headers(self) -> dict[str, str]:
        """The credentials of a client."""
        return {"Authorization": f"Bearer {self.key}"}

    @asynccontextmanager
    async def client(self, kind: str, mode: str, path: str = "/mcp") -> AsyncIterator[Client]:
        """Connect the official client through a proxy."""
        front = self.proxies[kind]
        async with front.http(self.headers) as http:
            transport: Any = streamable_http_client(front.origin + path, http_client=http)
            async with client(transport, mode) as made:
                yield made

    async def wait_recorded(self, expected: set[tuple[str, str]]) -> None:
        """Wait until the audit log has records of these kinds and addresses."""
        query = ["audit", "query", "--json", "--all"]
        found: set[tuple[str, str]] = set()
        async with asyncio.timeout(RUN_SECONDS):
            while not expected <= found:
                rows = json.loads(await asyncio.to_thread(run_trunkline, self.folder, *query))
                records = [row["record"] for row in rows]
                found = {(r["kind"], r.get("address") or r.get("name", "")) for r in records}


def run_trunkline(folder: Path, *arguments: str) -> str:
    """Run a command of ours; return its output."""
    command = [sys.executable, "-m", "trunkline", *arguments]
    return subprocess.run(
        [*command, "--config", str(folder / "trunkline.toml")],
        check=True,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    ).stdout


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    (commands,) = [each.text for each in BLOCKS if each.text.startswith("openssl ")]
    return make_certificate(tmp_path_factory.mktemp("tls"), commands)


@asynccontextmanager
async def start_site(
    folder: Path, head: str, configs: Mapping[str, str], certificate: Certificate
) -> AsyncIterator[Site]:
    """Start a gateway, and a proxy in front of it for each configuration."""
    place = folder / "gateway"
    place.mkdir()
    configure(place, SERVERS, head)
    key = run_trunkline(place, "key", "add", "anna", "--role", "dev").split()[0]
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(gateway(place, SERVERS, head))
        upstream = started.place.removeprefix("http://")
        fronts = {
            kind: await stack.enter_async_context(
                proxy(kind, text, upstream, folder / kind, certificate)
            )
            for kind, text in configs.items()
        }
        yield Site(started, fronts, place, key)


def head_of(text: str) -> str:
    """Return a configuration of the page, with the limits and the state of these tests."""
    listen, mode = 'listen = "127.0.0.1:8080"\n', 'mode = "api_key"\n'
    assert listen in text
    roles = "" if "[roles" in text else '[roles.dev]\npermissions = ["*"]\n'
    return text.replace(listen, LIMITS).replace(mode, f"{mode}max_failures = 3\n") + roles + STATE


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    tmp_path_factory: pytest.TempPathFactory, certificate: Certificate
) -> AsyncIterator[Site]:
    configs = {kind: block(kind) for kind in KINDS}
    folder = tmp_path_factory.mktemp("site")
    async with start_site(folder, head_of(block("toml")), configs, certificate) as started:
        yield started


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_official_client_calls_tools_over_tls(site: Site, kind: str, mode: str) -> None:
    async with site.client(kind, mode) as made:
        assert made.protocol_version == MODES[mode]
        assert await text(made, "sdk__echo", message="é" * 5000) == "Echo: " + "é" * 5000


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_event_of_a_call_arrives_before_its_end_and_a_client_that_leaves_ends_the_call(
    site: Site, kind: str, mode: str
) -> None:
    progressed = asyncio.Event()

    async def on_progress(*_: object) -> None:
        progressed.set()

    async with site.client(kind, mode) as other:
        async with site.client(kind, mode) as made:
            holding = asyncio.create_task(
                made.call_tool("sdk__hold", {}, progress_callback=on_progress)
            )
            async with asyncio.timeout(RUN_SECONDS):
                await progressed.wait()
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
        assert await text(other, "sdk__released") == "released"


def envelope() -> dict[str, Any]:
    prefix = "io.modelcontextprotocol/"
    return {f"{prefix}protocolVersion": STATELESS_REVISION, f"{prefix}clientCapabilities": {}}


def stateless(tool: str) -> dict[str, Any]:
    """Return the options of a raw call in the stateless protocol."""
    names = {
        "mcp-protocol-version": STATELESS_REVISION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    params = {"name": tool, "arguments": {}, "_meta": envelope()}
    return {"json": rpc("tools/call", params), "headers": JSON | names}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_silent_call_gets_pings_and_its_client_that_disconnects_cancels_it(
    site: Site, kind: str
) -> None:
    async with site.proxies[kind].http(site.headers) as http:
        async with http.stream("POST", "/mcp", **stateless("sdk__hold")) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            lines = answer.aiter_lines()
            pings = [line async for line, _ in _zip(lines, range(4))]
        assert ": ping" in pings
    async with site.client(kind, "auto") as made:
        assert await text(made, "sdk__released") == "released"


async def _zip(lines: AsyncIterator[str], numbers: range) -> AsyncIterator[tuple[str, int]]:
    for number in numbers:
        yield await anext(lines), number


async def open_session(http: httpx2.AsyncClient) -> dict[str, str]:
    """Open a session; return the headers of its requests."""
    answer = await http.post("/mcp", json=rpc("initialize", HELLO), headers=JSON)
    session = {"mcp-session-id": answer.headers["mcp-session-id"]}
    ready = rpc("notifications/initialized", id=None)
    assert (await http.post("/mcp", json=ready, headers=JSON | session)).status_code == 202
    return session


async def data_of(lines: AsyncIterator[str]) -> str:
    """Return the data of the next event that has some."""
    async for line in lines:
        if line.startswith("data: "):
            return line.removeprefix("data: ")
    raise EOFError("the stream has ended")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_stream_of_a_session_survives_a_reload_of_the_proxy(
    site: Site, kind: str
) -> None:
    front = site.proxies[kind]
    async with front.http(site.headers) as http:
        session = await open_session(http)
        accept = {"accept": "text/event-stream"} | session
        async with http.stream("GET", "/mcp", headers=accept) as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("id: ")
            await front.reload()
            async with front.http(site.headers) as other:
                assert (await other.get("/healthz")).status_code == 200
            called = await http.post("/mcp", json=rpc("tools/list"), headers=JSON | session)
            assert called.status_code == 200
            for _ in range(2):
                while await anext(lines) != ": ping":
                    pass


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_of_http_sse_learns_where_to_post(site: Site, kind: str) -> None:
    async with (
        site.proxies[kind].http(site.headers) as http,
        http.stream("GET", "/sse") as stream,
    ):
        lines = stream.aiter_lines()
        path = await data_of(lines)
        assert path.startswith("/messages?")
        posted = await http.post(path, json=rpc("initialize", HELLO), headers=JSON)
        assert posted.status_code == 202
        assert json.loads(await data_of(lines))["result"]["protocolVersion"] == SESSION_REVISION


@pytest.mark.parametrize("kind", KINDS)
async def test_a_websocket_survives_a_reload_of_the_proxy(site: Site, kind: str) -> None:
    front = site.proxies[kind]
    async with websockets.connect(
        f"wss://{NAME}/ws",
        host="127.0.0.1",
        port=front.port,
        ssl=front.certificate.trusting(),
        subprotocols=[websockets.Subprotocol("mcp")],
        additional_headers=site.headers,
        proxy=None,
    ) as socket:
        await socket.send(json.dumps(rpc("initialize", HELLO)))
        assert json.loads(await socket.recv())["result"]["protocolVersion"] == SESSION_REVISION
        await socket.send(json.dumps(rpc("notifications/initialized", id=None)))
        await front.reload()
        call = rpc("tools/call", {"name": "sdk__echo", "arguments": {"message": "x" * 40000}}, 2)
        await socket.send(json.dumps(call))
        assert "x" * 40000 in str(await socket.recv())


@pytest.mark.parametrize("kind", KINDS)
async def test_the_limit_of_bodies_is_that_of_the_gateway(site: Site, kind: str) -> None:
    async def chunks(size: int) -> AsyncIterator[bytes]:
        for start in range(0, size, 4096):
            yield b" " * min(4096, size - start)

    async with site.proxies[kind].http(site.headers) as http:
        for size, status in ((MAX_BODY, 400), (MAX_BODY + 1, 413), (3 * MAX_BODY, 413)):
            for body in (b" " * size, chunks(size)):
                answer = await http.post("/mcp", content=body, headers=JSON)
                assert (answer.status_code, size) == (status, size)
        assert f"expected a body of at most {MAX_BODY} bytes" in answer.text


SPOOFED = {"x-forwarded-for": "10.9.9.9", "forwarded": "for=10.8.8.8", "x-real-ip": "10.7.7.7"}
WRONG_KEY = {"Authorization": "Bearer tlk_wrong"}
ADDRESSES = {"nginx": "127.0.1.1", "haproxy": "127.0.1.2", "caddy": "127.0.1.3"}


async def test_limits_log_and_audit_have_the_address_of_the_client(site: Site) -> None:
    for kind, address in ADDRESSES.items():
        front = site.proxies[kind]
        async with front.http(WRONG_KEY, local_address=address) as http:
            statuses = [(await http.get("/mcp", headers=SPOOFED)).status_code for _ in range(5)]
        assert statuses == [401] * 3 + [429] * 2
        await site.gateway.program.says(rf'"address": *"{address}"')
        async with front.http(site.headers, local_address=address) as http:
            session = JSON | SPOOFED | await open_session(http)
            call = rpc("tools/call", {"name": "sdk__echo", "arguments": {"message": kind}})
            assert (await http.post("/mcp", json=call, headers=session)).status_code == 200
    kinds = ("call", "auth_rejected")
    await site.wait_recorded({(kind, one) for kind in kinds for one in ADDRESSES.values()})
    others = {"10.9.9.9", "10.8.8.8", "10.7.7.7"}
    assert not [line for line in site.gateway.program.lines if any(o in line for o in others)]


async def test_addresses_that_an_untrusted_client_names_are_ignored(site: Site) -> None:
    transport = httpx2.AsyncHTTPTransport(local_address="127.0.2.1")
    async with httpx2.AsyncClient(transport=transport, headers=WRONG_KEY) as http:
        assert (await http.get(site.gateway.mcp, headers=SPOOFED)).status_code == 401
    await site.gateway.program.says(r'"address": *"127.0.2.1"')


async def test_the_client_is_found_behind_two_proxies(
    site: Site, certificate: Certificate, tmp_path: Path
) -> None:
    last = f"127.0.0.1:{site.proxies['nginx'].port} ssl verify none sni str({NAME})"
    text = block("haproxy")
    forwarded = "http-request set-header Forwarded for=%[src]\n    "
    variants = {
        "127.0.3.1": (last, text),
        # A proxy that sets Forwarded has to remove the header of the client.
        "127.0.3.2": (
            site.gateway.place.removeprefix("http://"),
            text.replace(
                "option forwardfor", forwarded + "http-request del-header X-Forwarded-For"
            ),
        ),
    }
    for number, (address, (upstream, config)) in enumerate(variants.items()):
        folder = tmp_path / str(number)
        async with (
            proxy("haproxy", config, upstream, folder, certificate) as front,
            front.http(WRONG_KEY, local_address=address) as http,
        ):
            assert (await http.get("/mcp", headers=SPOOFED)).status_code == 401
        await site.gateway.program.says(rf'"address": *"{address}"')


@pytest.mark.parametrize("kind", KINDS)
async def test_metadata_names_the_public_url(site: Site, kind: str) -> None:
    async with site.proxies[kind].http() as http:
        challenge = (await http.get("/mcp")).headers["www-authenticate"]
        url = challenge.partition('resource_metadata="')[2].partition('"')[0]
        assert url == f"{PUBLIC}/.well-known/oauth-protected-resource/mcp"
        assert (await http.get(url.removeprefix(PUBLIC))).json()["resource"] == f"{PUBLIC}/mcp"


async def test_client_config_names_the_public_url(site: Site) -> None:
    assert f'"url": "{PUBLIC}/mcp"' in run_trunkline(site.folder, "client-config", "cursor")


@pytest.mark.parametrize("kind", KINDS)
async def test_host_and_origin_are_checked(site: Site, kind: str) -> None:
    async with site.proxies[kind].http(site.headers) as http:
        for origin, status in ((PUBLIC, 200), ("https://evil.example", 403)):
            headers = JSON | {"origin": origin}
            answer = await http.post("/mcp", json=rpc("initialize", HELLO), headers=headers)
            assert answer.status_code == status
        if kind != "caddy":  # Caddy does not forward names that it does not have
            assert (await http.get("/mcp", headers={"host": "evil.example"})).status_code == 421


@pytest.mark.parametrize("kind", KINDS)
async def test_a_proxy_keeps_its_connection_to_the_gateway(
    site: Site, kind: str, certificate: Certificate, tmp_path: Path
) -> None:
    """Count the connections of 20 calls, in a relay between the proxy and the gateway."""
    count = 0
    host, _, port = site.gateway.place.removeprefix("http://").partition(":")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        inner_reader, inner_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(
            pass_on(reader, inner_writer), pass_on(inner_reader, writer), return_exceptions=True
        )

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    upstream = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with (
        server,
        proxy(kind, block(kind), upstream, tmp_path / kind, certificate) as front,
        front.http(site.headers) as http,
    ):
        for _ in range(20):
            assert (await http.post("/mcp", **stateless("sdk__echo"))).status_code == 200
    assert count == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_gateway_that_restarts_is_used_at_once(
    kind: str, certificate: Certificate, tmp_path: Path
) -> None:
    port = free_port()
    config = configure(tmp_path, {}, head_of(block("toml")))
    serve = [sys.executable, "-m", "trunkline", "serve", "--http", f"127.0.0.1:{port}"]
    async with (
        proxy(kind, block(kind), f"127.0.0.1:{port}", tmp_path / kind, certificate) as front,
        front.http() as http,
    ):
        assert (await http.get("/mcp")).status_code == (503 if kind == "haproxy" else 502)
        for _ in range(2):
            async with running(*serve, "--config", config) as program:
                await program.says("MCP at ")
                assert (await http.get("/mcp")).status_code == 401


def below_path(kind: str) -> str:
    """Return the configuration of the page for a gateway below a path."""
    main, changed = block(kind), block(kind, 1)
    match kind:
        case "nginx":
            root = main[main.index("    location / {") : main.rindex("}")]
            return main.replace(root, changed)
        case "haproxy":
            frontend, backend, _ = changed.split("\n")
            main = main.replace("    default_backend trunkline", frontend)
            return main.replace("    server gateway", f"{backend}\n    server gateway")
        case _:
            return changed


async def test_below_a_path_all_urls_have_the_path(
    certificate: Certificate, tmp_path: Path
) -> None:
    configs = {kind: below_path(kind) for kind in KINDS}
    head = head_of(block("toml", 1))
    async with start_site(tmp_path, head, configs, certificate) as site:
        for kind, front in site.proxies.items():
            async with site.client(kind, "auto", path="/tools/mcp") as made:
                assert await text(made, "sdk__echo", message=kind) == f"Echo: {kind}"
            async with front.http(site.headers) as http:
                other_site = await http.get("/mcp")
                assert "www-authenticate" not in other_site.headers
                assert "trunkline" not in other_site.text
                async with http.stream("GET", "/tools/sse") as stream:
                    path = await data_of(stream.aiter_lines())
                    assert path.startswith("/tools/messages?")
                    posted = await http.post(path, json=rpc("initialize", HELLO), headers=JSON)
                    assert posted.status_code == 202
            async with front.http() as http:
                challenge = (await http.get("/tools/mcp")).headers["www-authenticate"]
                metadata = "/.well-known/oauth-protected-resource"
                url = f"{PUBLIC}/tools{metadata}/mcp"
                assert f'resource_metadata="{url}"' in challenge
                for place in (url.removeprefix(PUBLIC), f"{metadata}/tools/mcp"):
                    found = (await http.get(place)).json()
                    assert found["resource"] == f"{PUBLIC}/tools/mcp"


async def test_the_proxy_can_authenticate_the_clients(
    certificate: Certificate, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    users.write_text("anna:{PLAIN}secret\n")
    users.chmod(0o644)
    own = block("nginx", 2).replace("/etc/nginx/trunkline.htpasswd", str(users))
    config = block("nginx").replace("    location / {", f"{own}    location / {{")
    head = head_of(block("toml", 2)) + '[auth]\nmode = "none"\n'
    place = tmp_path / "gateway"
    os.mkdir(place)  # noqa: PTH102  pathlib would be a blocking call here
    async with (
        gateway(place, SERVERS, head) as started,
        proxy(
            "nginx",
            config,
            started.place.removeprefix("http://"),
            tmp_path / "nginx",
            certificate,
        ) as front,
    ):
        for proof, status in ((("anna", "secret"), 200), (("anna", "wrong"), 401)):
            async with front.http(local_address="127.0.3.3") as http:
                hello = rpc("initialize", HELLO)
                answer = await http.post("/mcp", json=hello, headers=JSON, auth=proof)
                assert answer.status_code == status


async def test_the_page_shows_what_curl_prints(site: Site) -> None:
    (page,) = [each.text for each in BLOCKS if each.text.startswith("$ curl")]
    command, _, shown = page.removeprefix("$ ").partition("\n")
    for front in site.proxies.values():
        to = ["--connect-to", f"{NAME}:443:127.0.0.1:{front.port}"]
        trust = ["--cacert", front.certificate.authority]
        code, printed, problems = await run(*command.split(), *to, *trust)
        assert (code, problems) == (0, "")
        assert matches(shown, printed), printed
