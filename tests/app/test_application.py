"""Building an application from a configuration, in this process and in its own process."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import BROKEN, OPERATOR, child, config
from tests.sources.registries import TREE, write
from tests.tasks import hang_guard
from trunkline import __version__
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.app.build import AppLimits
from trunkline.backends.limits import BackendLimits
from trunkline.config import Config, load_config
from trunkline.gateway.upstream import UpstreamState
from trunkline.mcp.era_detection import ProbeTimeouts
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.versions import V2026_07_28, find_revision
from trunkline.routing import breaker

ECHO_SERVER = Path(__file__).parents[1] / "children" / "echo_server.py"


def message(method: str, params: Any = None, **more: Any) -> bytes:
    fields = {"jsonrpc": "2.0", **more, "method": method}
    if params is not None:
        fields["params"] = params
    return json.dumps(fields).encode() + b"\n"


HELLO = message(
    "initialize",
    {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
    id=1,
)
READY = message("notifications/initialized")
LIST = message("tools/list", id="l")
SEARCH = ["search__find_tools", "search__describe_tool", "search__call_tool"]


async def start(folder: Path, *arguments: str) -> Process:
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    environ.pop("TRUNKLINE_CONFIG", None)
    command = [sys.executable, "-m", "trunkline", "serve", *arguments]
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ, cwd=folder
    )


async def ask(process: Process, *lines: bytes) -> Any:
    """Send lines; return the next response."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"".join(lines))
    async with hang_guard():
        return json.loads(await process.stdout.readline())


async def run_session(folder: Path, lines: bytes) -> tuple[int, list[Any]]:
    """Send lines over stdio and close stdin; return the exit code and all responses."""
    process = await start(folder, "--stdio")
    async with hang_guard():
        out, err = await process.communicate(lines)
    assert err.startswith(f"trunkline {__version__}: MCP over stdio, 2 servers".encode())
    assert len(err.splitlines()) == 1, err
    return process.returncode or 0, [json.loads(line) for line in out.splitlines()]


def build_app(*tables: str, folder: Path, limits: AppLimits | None = None) -> App:
    return App(load_config(Path(config(folder, *tables)), {}), limits=limits)


@pytest.mark.holds("S4.14", "S4.6", "O4.1")
async def test_every_request_on_stdin_is_answered_and_the_end_of_stdin_stops_the_gateway(
    tmp_path: Path,
) -> None:
    process = await start(tmp_path, "--stdio")
    assert process.stdin is not None
    assert process.stdout is not None
    async with hang_guard():
        # Closing waits 5 s for responses, so the servers are ready before stdin ends.
        process.stdin.write(
            message("tools/list", id=0) + HELLO + READY + message("tools/list", id=9)
        )
        out = b""
        while b'"id":9' not in out:
            out += await process.stdout.readline()
        rest, _ = await process.communicate(b"\ngarbage\r\n" + LIST + message("ping", id=2).strip())
    assert process.returncode == 0
    answers: list[Any] = [json.loads(line) for line in (out + rest).splitlines()]
    assert {answer["jsonrpc"] for answer in answers} == {"2.0"}
    found = {answer["id"]: answer for answer in answers if "id" in answer}
    assert found[0]["error"]["code"] == -32002
    assert found[1]["result"]["serverInfo"] == {"name": "trunkline", "version": __version__}
    assert found[None]["error"]["code"] == -32700
    names = [tool["name"] for tool in found["l"]["result"]["tools"]]
    assert names[:3] == ["trunkline__status", "trunkline__logs", "sources__get_sources"]
    assert found[2]["result"] == {}


@pytest.mark.holds("S2.24", "C28")
async def test_a_message_gets_the_same_response_over_stdio_and_in_process(tmp_path: Path) -> None:
    _, answers = await run_session(tmp_path, HELLO)
    engine = App(DEFAULT_CONFIG).gateway.open_engine()
    assert json.loads(await engine.handle_json(HELLO.decode()) or "") == answers[0]
    await App(DEFAULT_CONFIG).gateway.aclose()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_gateway_and_its_server_processes(
    number: int, tmp_path: Path
) -> None:
    process = await start(tmp_path, "--config", config(tmp_path, child("small"), OPERATOR))
    await ask(process, HELLO)
    listed = await ask(process, READY, message("tools/list", id=2))
    while "id" not in listed:  # a list_changed notification may come first
        listed = await ask(process)
    assert "small__echo" in {tool["name"] for tool in listed["result"]["tools"]}
    pids = children(process.pid)
    assert pids
    process.send_signal(number)
    async with hang_guard():
        assert await process.wait() == 0
    assert process.stderr is not None
    assert b"Traceback" not in await process.stderr.read()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_without_a_configuration_the_built_in_tools_are_served() -> None:
    async with hang_guard(), App(DEFAULT_CONFIG).running() as gateway:
        await gateway.registry.wait_complete()
        assert [
            entry.public_name for entry in gateway.registry.catalog.entries(FeatureKind.TOOL)
        ] == [
            "trunkline__status",
            "trunkline__logs",
            "sources__get_sources",
            "sources__list_categories",
            "sources__get_provenance",
            "sources__get_endorsements",
            "sources__get_federated_sources",
        ]
    assert [upstream.state for upstream in gateway.registry] == [UpstreamState.STOPPED] * 2


async def test_an_invalid_sources_registry_fails_only_its_own_server(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    table = '[servers.books]\nbuiltin = "sources"\nregistry = "bad.json"\nmax_restarts = 0'
    app = build_app(table, OPERATOR, folder=tmp_path)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        books, me = gateway.registry.snapshots()
        assert (books.state, me.state) == (UpstreamState.FAILED, UpstreamState.READY)
        assert "bad.json:1:2: not JSON" in str(books.error)


@pytest.mark.holds("O1.6")
async def test_a_sources_server_uses_its_configured_registry_and_weights(tmp_path: Path) -> None:
    write(tmp_path / "ten.json", TREE)
    more = "threshold = 0.6\nfuzzy_weight = 0.5\nkeyword_weight = 0.5"
    table = f'[servers.books]\nbuiltin = "sources"\nregistry = "ten.json"\n{more}'
    app = build_app(table, folder=tmp_path)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        engine = gateway.open_engine()
        await engine.handle_json(HELLO.decode())
        await engine.handle_json(READY.decode())
        results: list[dict[str, Any]] = []
        for query in ("learn rust", "bitcoin node"):
            params = {"name": "books__get_sources", "arguments": {"query": query}}
            request = message("tools/call", id=7, params=params)
            results.append(json.loads(await engine.handle_json(request.decode()) or "")["result"])
    assert results[0]["isError"] is True
    assert results[1]["structuredContent"]["score"] == 0.6667


async def test_servers_run_only_while_the_application_runs(tmp_path: Path) -> None:
    app = build_app(child("small", "echo"), folder=tmp_path)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        assert [
            entry.public_name for entry in gateway.registry.catalog.entries(FeatureKind.TOOL)
        ] == ["small__echo"]
        pid = app.servers.children["small"].pid
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("surface", "names"),
    [
        (
            '"all"',
            [*SEARCH, "me__status", "me__logs"],
        ),
        ('"search"', SEARCH),
        (
            '["me__*"]',
            [*SEARCH, "me__status", "me__logs"],
        ),
    ],
)
async def test_the_surface_setting_selects_the_listed_tools(
    tmp_path: Path, surface: str, names: list[str]
) -> None:
    gateway_table = f"[gateway]\nsurface = {surface}\n"
    app = build_app(
        gateway_table, '[servers.search]\nbuiltin = "search"', OPERATOR, folder=tmp_path
    )
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        engine = gateway.open_engine()
        await engine.handle_json(HELLO.decode())
        listed = json.loads(str(await engine.handle_json(LIST.decode())))
        assert [tool["name"] for tool in listed["result"]["tools"]] == names


async def test_a_server_that_fails_affects_no_other(tmp_path: Path) -> None:
    web = '[servers.web]\nurl = "http://127.0.0.1:1/mcp"'
    app = build_app(BROKEN, web, OPERATOR, folder=tmp_path)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        states = {each.name: each for each in gateway.registry.snapshots()}
    assert states["me"].state is UpstreamState.READY
    assert "cannot start '/nonexistent/program'" in str(states["broken"].error)
    assert states["web"].error == "127.0.0.1:1: connection refused"


async def test_a_disabled_server_has_no_upstream(tmp_path: Path) -> None:
    app = build_app('[servers.off]\ncommand = "x"\ndisabled = true', OPERATOR, folder=tmp_path)
    assert [upstream.name for upstream in app.gateway.registry] == ["me"]


async def test_a_server_process_runs_in_the_folder_of_the_configuration(tmp_path: Path) -> None:
    where = '[servers.where]\ncommand = "sh"\nargs = ["-c", "pwd >&2"]'
    app = build_app(where, folder=tmp_path)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        assert app.servers.children["where"].stderr_tail() == (str(tmp_path.resolve()),)


async def test_the_server_settings_reach_the_gateway(tmp_path: Path) -> None:
    more = 'prefix = ""\ntimeout = 3\nmax_timeout = 13\nstart_timeout = 4\n'
    more += "max_restarts = 5\nmax_in_flight = 6\n"
    more += "max_sessions = 7\nmax_queue = 8\nbreaker_threshold = 9\n"
    more += "breaker_recovery = 10\nping_interval = 11\n"
    more += "max_in_flight_per_principal = 12\nnormalise_schemas = true\n"
    more += "title = 'T'\ninstructions = 'I'\nidle_stop = '2h'"
    app = build_app('[gateway]\nname = "home"', child("a", more=more), folder=tmp_path)
    (upstream,) = app.gateway.registry
    assert len(upstream.settings.snapshot_key) == 64
    assert tuple(upstream.settings._replace(snapshot_key="")) == (
        "a",
        "",
        3.0,
        13.0,
        4.0,
        5,
        6,
        7,
        8,
        9,
        10.0,
        11.0,
        12,
        None,
        True,
        "T",
        "I",
        "",
        1800.0,
        7200.0,
        60.0,
    )
    assert app.gateway.identity.name == "home"
    assert App(Config()).gateway.identity.name == "trunkline"


async def test_a_server_that_refuses_initialize_is_used_with_the_stateless_protocol(
    tmp_path: Path,
) -> None:
    modern = (
        f'[servers.modern]\ncommand = "{sys.executable}"\nprefix = ""\n'
        f'args = ["{ECHO_SERVER}", "--stateless"]'
    )
    app = build_app(modern, folder=tmp_path)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        (snapshot,) = gateway.registry.snapshots()
        assert (snapshot.state, snapshot.revision) == (UpstreamState.READY, V2026_07_28)
        assert [
            entry.public_name for entry in gateway.registry.catalog.entries(FeatureKind.TOOL)
        ] == ["echo"]


SCRIPTED_SERVER = """
import json, sys
behaviour = sys.argv[1]
for line in sys.stdin:
    request = json.loads(line)
    method, answer = request["method"], {"error": {"code": -32601, "message": "no"}}
    if "id" not in request:
        continue
    if method == "server/discover" and behaviour == "exits":
        sys.exit(1)
    if method == "server/discover" and behaviour == "silent":
        continue
    server = {"name": "scripted", "version": behaviour}
    if method == "initialize" and behaviour != "modern":
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": server}}
    if method == "server/discover" and behaviour == "modern":
        answer = {"result": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}}
    if method == "tools/list":
        answer = {"result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}}
    if method == "tools/call":
        answer = {"result": {"content": []}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


def scripted_server(name: str, folder: Path, behaviour: str) -> str:
    """Return the table of a scripted server; call again to change its behaviour."""
    program = folder / f"{name}.py"
    program.write_text(SCRIPTED_SERVER.replace("sys.argv[1]", repr(behaviour)), encoding="utf-8")
    command, args = json.dumps(sys.executable), json.dumps([str(program), "s3cr3t"])
    return f"[servers.{name}]\ncommand = {command}\nargs = {args}\n"


async def versions(app: App) -> dict[str, str | None]:
    """Start all servers; return the protocol revision used with each."""
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        snapshots = {each.name: each for each in gateway.registry.snapshots()}
    assert {each.error for each in snapshots.values()} == {None}
    assert {each.restarts for each in snapshots.values()} == {0}
    assert {each.feature_count for each in snapshots.values()} == {1}
    assert gateway.remapper.pending_count() == 0
    return {name: each.revision and each.revision.date for name, each in snapshots.items()}


@pytest.mark.holds("T104", "T105")
async def test_the_protocol_of_all_servers_is_detected_concurrently(
    tmp_path: Path,
) -> None:
    backends = BackendLimits(probe_timeouts=ProbeTimeouts(usual=0.05))
    kinds = ("silent", "exits", "plain", "modern")
    tables = (scripted_server(kind, tmp_path, kind) for kind in kinds)
    app = build_app(*tables, folder=tmp_path, limits=AppLimits(backends=backends))
    old = dict.fromkeys(("silent", "exits", "plain"), "2025-11-25")
    assert await versions(app) == {**old, "modern": "2026-07-28"}
    assert [file.suffix for file in tmp_path.iterdir() if file.suffix == ".json"] == []


@pytest.mark.holds("T108")
async def test_a_detected_protocol_is_stored_and_replaced_when_it_no_longer_works(
    tmp_path: Path,
) -> None:
    for behaviour, version in (
        ("exits", "2025-11-25"),
        ("exits", "2025-11-25"),
        ("modern", "2026-07-28"),
        ("modern", "2026-07-28"),
        ("plain", "2025-11-25"),
    ):
        table = scripted_server("s", tmp_path, behaviour)
        app = build_app('[gateway]\nstate_dir = "state"', table, folder=tmp_path)
        assert await versions(app) == {"s": version}
        text = (tmp_path / "state" / "eras.json").read_text(encoding="utf-8")
        (entry,) = json.loads(text)["servers"].values()
        assert entry["era"] == ("stateless" if behaviour == "modern" else "session")
        assert entry["version"] == ("" if behaviour == "modern" else behaviour)
        assert "s3cr3t" not in text
        assert str(tmp_path) not in text


@pytest.mark.holds("T108")
async def test_the_protocol_is_detected_again_after_a_server_program_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_delay(failures: int, jitter: float) -> float:
        return 0.0

    monkeypatch.setattr(breaker, "backoff_delay", no_delay)
    app = build_app(scripted_server("s", tmp_path, "plain"), folder=tmp_path)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        for behaviour, version in (("modern", "2026-07-28"), ("exits", "2025-11-25")):
            scripted_server("s", tmp_path, behaviour)
            (upstream,) = gateway.registry
            restarts = upstream.restarts
            os.kill(app.servers.children["s"].pid, signal.SIGKILL)
            while not (upstream.ready and upstream.restarts > restarts):
                await asyncio.sleep(0)
            assert upstream.restarts == restarts + 1
            assert upstream.snapshot().revision is find_revision(version)


async def test_detected_protocols_are_stored_only_with_a_state_directory(tmp_path: Path) -> None:
    table, state = scripted_server("s", tmp_path, "plain"), tmp_path / "state"
    without_state_dir = load_config(Path(config(tmp_path, '[gateway]\nstate_dir = ""', table)), {})
    await versions(App(without_state_dir, state))
    assert not state.exists()
    with_default_state_dir = load_config(Path(config(tmp_path, table)), {})
    await versions(App(with_default_state_dir))
    assert not state.exists()
    await versions(App(with_default_state_dir, state))
    assert state.exists()
