"""The composition root: a configuration becomes a gateway, here and in a process of its own."""

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
from trunkline import __version__
from trunkline.app import DEFAULT, App
from trunkline.config import Config, load
from trunkline.gateway.upstream import State
from trunkline.mcp import inquiry
from trunkline.mcp.offer import Kind
from trunkline.routing import backoff


def message(method: str, params: Any = None, **more: Any) -> bytes:
    found = {"jsonrpc": "2.0", **more, "method": method}
    return json.dumps(found if params is None else found | {"params": params}).encode() + b"\n"


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
    """Send lines, and return the next answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"".join(lines))
    async with asyncio.timeout(20):
        return json.loads(await process.stdout.readline())


async def converse(folder: Path, lines: bytes) -> tuple[int, list[Any]]:
    """Send lines over stdio, then the end; return the exit code and all answers."""
    process = await start(folder, "--stdio")
    async with asyncio.timeout(20):
        out, err = await process.communicate(lines)
    assert err.startswith(f"trunkline {__version__}: MCP over stdio, 2 servers".encode())
    assert len(err.splitlines()) == 1, err
    return process.returncode or 0, [json.loads(line) for line in out.splitlines()]


def started(*tables: str, folder: Path) -> App:
    return App(load(Path(config(folder, *tables)), {}))


@pytest.mark.holds("S4.14", "S4.6")
async def test_every_line_on_stdin_is_answered_on_stdout_and_the_end_ends_it(
    tmp_path: Path,
) -> None:
    early = message("tools/list", id=0)
    code, answers = await converse(
        tmp_path, early + HELLO + READY + b"\ngarbage\r\n" + LIST + message("ping", id=2).strip()
    )
    assert code == 0
    assert {answer["jsonrpc"] for answer in answers} == {"2.0"}
    found = {answer["id"]: answer for answer in answers if "id" in answer}
    assert found[0]["error"]["code"] == -32002
    assert found[1]["result"]["serverInfo"] == {"name": "trunkline", "version": __version__}
    assert found[None]["error"]["code"] == -32700
    names = [tool["name"] for tool in found["l"]["result"]["tools"]]
    assert names[:3] == ["trunkline__status", "trunkline__logs", "sources__get_sources"]
    assert found[2]["result"] == {}


@pytest.mark.holds("S2.24")
async def test_the_same_message_gets_the_same_answer_on_every_transport(tmp_path: Path) -> None:
    _, answers = await converse(tmp_path, HELLO)
    engine = App(DEFAULT).gateway.open_engine()
    assert json.loads(await engine.handle_json(HELLO.decode()) or "") == answers[0]
    await App(DEFAULT).gateway.aclose()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order_and_its_children_with_it(
    number: int, tmp_path: Path
) -> None:
    process = await start(tmp_path, "--config", config(tmp_path, child("small"), OPERATOR))
    await ask(process, HELLO)
    listed = await ask(process, READY, message("tools/list", id=2))
    while "id" not in listed:  # that the list has changed may be told before
        listed = await ask(process)
    assert "small__echo" in {tool["name"] for tool in listed["result"]["tools"]}
    pids = children(process.pid)
    assert pids
    process.send_signal(number)
    async with asyncio.timeout(5):
        assert await process.wait() == 0
    assert process.stderr is not None
    assert b"Traceback" not in await process.stderr.read()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def children(pid: int) -> list[int]:
    """Return who was started by a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_what_is_served_without_a_configuration_is_the_built_in_tools() -> None:
    async with asyncio.timeout(5), App(DEFAULT).running() as gateway:
        await gateway.registry.wait_settled()
        assert [entry.public for entry in gateway.registry.catalog.entries(Kind.TOOL)] == [
            "trunkline__status",
            "trunkline__logs",
            "sources__get_sources",
            "sources__list_categories",
            "sources__get_provenance",
            "sources__get_endorsements",
            "sources__get_federated_sources",
        ]
    assert [upstream.state for upstream in gateway.registry] == [State.STOPPED] * 2


async def test_a_registry_that_is_not_good_costs_its_own_server_alone(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    table = '[servers.books]\nbuiltin = "sources"\nregistry = "bad.json"\nmax_restarts = 0'
    app = started(table, OPERATOR, folder=tmp_path)
    async with asyncio.timeout(5), app.running() as gateway:
        await gateway.registry.wait_settled()
        books, me = gateway.registry.snapshot()
        assert (books.state, me.state) == (State.FAILED, State.READY)
        assert "bad.json:1:2: not JSON" in str(books.error)


@pytest.mark.holds("O1.6")
async def test_a_registry_is_served_as_it_is_configured(tmp_path: Path) -> None:
    write(tmp_path / "ten.json", TREE)
    more = "threshold = 0.6\nfuzzy_weight = 0.5\nkeyword_weight = 0.5"
    table = f'[servers.books]\nbuiltin = "sources"\nregistry = "ten.json"\n{more}'
    app = started(table, folder=tmp_path)
    async with asyncio.timeout(5), app.running() as gateway:
        await gateway.registry.wait_settled()
        engine = gateway.open_engine()
        await engine.handle_json(HELLO.decode())
        await engine.handle_json(READY.decode())
        said: list[dict[str, Any]] = []
        for query in ("learn rust", "bitcoin node"):
            params = {"name": "books__get_sources", "arguments": {"query": query}}
            asked = message("tools/call", id=7, params=params)
            said.append(json.loads(await engine.handle_json(asked.decode()) or "")["result"])
    assert said[0]["isError"] is True
    assert said[1]["structuredContent"]["score"] == 0.6667


async def test_servers_run_while_somebody_has_a_question_and_no_longer(tmp_path: Path) -> None:
    app = started(child("small", "echo"), folder=tmp_path)
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        assert [entry.public for entry in gateway.registry.catalog.entries(Kind.TOOL)] == [
            "small__echo"
        ]
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
async def test_the_surface_says_what_is_listed(
    tmp_path: Path, surface: str, names: list[str]
) -> None:
    head = f"[gateway]\nsurface = {surface}\n"
    app = started(head, '[servers.search]\nbuiltin = "search"', OPERATOR, folder=tmp_path)
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        engine = gateway.open_engine()
        await engine.handle_json(HELLO.decode())
        listed = json.loads(str(await engine.handle_json(LIST.decode())))
        assert [tool["name"] for tool in listed["result"]["tools"]] == names


async def test_one_bad_server_is_one_bad_server(tmp_path: Path) -> None:
    web = '[servers.web]\nurl = "http://127.0.0.1:1/mcp"'
    app = started(BROKEN, web, OPERATOR, folder=tmp_path)
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        states = {each.name: each for each in gateway.registry.snapshot()}
    assert states["me"].state is State.READY
    assert "cannot start '/nonexistent/program'" in str(states["broken"].error)
    assert states["web"].error == "127.0.0.1:1: connection refused"


async def test_a_disabled_server_is_left_out(tmp_path: Path) -> None:
    app = started('[servers.off]\ncommand = "x"\ndisabled = true', OPERATOR, folder=tmp_path)
    assert [upstream.name for upstream in app.gateway.registry] == ["me"]


async def test_a_child_runs_in_the_folder_of_the_configuration(tmp_path: Path) -> None:
    where = '[servers.where]\ncommand = "sh"\nargs = ["-c", "pwd >&2"]'
    app = started(where, folder=tmp_path)
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        assert app.servers.children["where"].stderr_tail() == (str(tmp_path.resolve()),)


async def test_the_settings_of_a_configuration_reach_the_gateway(tmp_path: Path) -> None:
    more = 'prefix = ""\ntimeout = 3\nstart_timeout = 4\nmax_restarts = 5\nmax_in_flight = 6\n'
    more += "max_conversations = 7\nmax_queue = 8\nbreaker_threshold = 9\n"
    more += "breaker_recovery = 10\nping_interval = 11"
    app = started('[gateway]\nname = "home"', child("a", more=more), folder=tmp_path)
    (upstream,) = app.gateway.registry
    assert tuple(upstream.settings) == ("a", "", 3.0, 4.0, 5, 6, 7, 8, 9, 10.0, 11.0)
    assert app.gateway.identity.name == "home"
    assert App(Config()).gateway.identity.name == "trunkline"


async def test_a_child_that_refuses_the_handshake_is_spoken_to_in_envelopes(
    tmp_path: Path,
) -> None:
    modern = (
        f'[servers.modern]\ncommand = "{sys.executable}"\nprefix = ""\n'
        'args = ["-m", "trunkline.benchmark.server", "--stdio", "--era", "envelope"]'
    )
    app = started(modern, folder=tmp_path)
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        (modern_one,) = gateway.registry.snapshot()
        assert (modern_one.state, modern_one.version) == (State.READY, "2026-07-28")
        assert [entry.public for entry in gateway.registry.catalog.entries(Kind.TOOL)] == ["echo"]


ODD = """
import json, sys
wanted = sys.argv[1]
for line in sys.stdin:
    asked = json.loads(line)
    method, answer = asked["method"], {"error": {"code": -32601, "message": "no"}}
    if "id" not in asked:
        continue
    if method == "server/discover" and wanted == "exits":
        sys.exit(1)
    if method == "server/discover" and wanted == "silent":
        continue
    server = {"name": "odd", "version": wanted}
    if method == "initialize" and wanted != "modern":
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": server}}
    if method == "server/discover" and wanted == "modern":
        answer = {"result": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}}
    if method == "tools/list":
        answer = {"result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}}
    if method == "tools/call":
        answer = {"result": {"content": []}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def odd(name: str, folder: Path, behaviour: str) -> str:
    """Return the table of a program that does this; what it does can be changed in its file."""
    program = folder / f"{name}.py"
    program.write_text(ODD.replace("sys.argv[1]", repr(behaviour)), encoding="utf-8")
    command, args = json.dumps(sys.executable), json.dumps([str(program), "s3cr3t"])
    return f"[servers.{name}]\ncommand = {command}\nargs = {args}\n"


async def versions(app: App) -> dict[str, str | None]:
    """Start all servers; return the revisions that they are spoken to in."""
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        found = {each.name: each for each in gateway.registry.snapshot()}
    assert {each.error for each in found.values()} == {None}
    assert {each.restarts for each in found.values()} == {0}
    assert {each.offers for each in found.values()} == {1}
    assert gateway.remapper.pending_count() == 0
    return {name: each.version for name, each in found.items()}


@pytest.mark.holds("T104", "T105")
async def test_children_are_asked_side_by_side_whatever_they_do_with_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiry, "PATIENCE", 0.05)
    kinds = ("silent", "exits", "plain", "modern")
    app = started(*(odd(kind, tmp_path, kind) for kind in kinds), folder=tmp_path)
    old = dict.fromkeys(("silent", "exits", "plain"), "2025-11-25")
    assert await versions(app) == {**old, "modern": "2026-07-28"}
    assert [file.suffix for file in tmp_path.iterdir() if file.suffix == ".json"] == []


@pytest.mark.holds("T108")
async def test_what_a_child_is_outlives_the_gateway_and_is_given_up_when_it_proves_wrong(
    tmp_path: Path,
) -> None:
    for behaviour, version in (
        ("exits", "2025-11-25"),
        ("exits", "2025-11-25"),
        ("modern", "2026-07-28"),
        ("modern", "2026-07-28"),
        ("plain", "2025-11-25"),
    ):
        table = odd("s", tmp_path, behaviour)
        app = started('[gateway]\nstate = "kept"', table, folder=tmp_path)
        assert await versions(app) == {"s": version}
        text = (tmp_path / "kept" / "eras.json").read_text(encoding="utf-8")
        (entry,) = json.loads(text)["servers"].values()
        assert entry["era"] == ("envelope" if behaviour == "modern" else "handshake")
        assert entry["version"] == ("" if behaviour == "modern" else behaviour)
        assert "s3cr3t" not in text
        assert str(tmp_path) not in text


@pytest.mark.holds("T108")
async def test_a_child_that_is_replaced_while_it_is_used_is_used_again_in_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(failures: int, chance: float) -> float:
        return 0.0

    monkeypatch.setattr(backoff, "delay", at_once)
    app = started(odd("s", tmp_path, "plain"), folder=tmp_path)
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        for behaviour, version in (("modern", "2026-07-28"), ("exits", "2025-11-25")):
            odd("s", tmp_path, behaviour)
            (upstream,) = gateway.registry
            restarts = upstream.restarts
            os.kill(app.servers.children["s"].pid, signal.SIGKILL)
            while not (upstream.ready and upstream.restarts > restarts):
                await asyncio.sleep(0)
            assert upstream.restarts == restarts + 1
            assert upstream.snapshot().version == version


async def test_nothing_is_kept_unless_somebody_says_where(tmp_path: Path) -> None:
    table, kept = odd("s", tmp_path, "plain"), tmp_path / "kept"
    nowhere = load(Path(config(tmp_path, '[gateway]\nstate = ""', table)), {})
    await versions(App(nowhere, kept))
    assert not kept.exists()
    somewhere = load(Path(config(tmp_path, table)), {})
    await versions(App(somewhere))
    assert not kept.exists()
    await versions(App(somewhere, kept))
    assert kept.exists()
