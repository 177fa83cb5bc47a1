"""Servers from npm and PyPI answer the same through the gateway as directly, to the byte.

Every row of SERVERS starts without an account, calls no other machine and keeps its files in one
directory. A call of the table is harmless and answers the same each time, unless `varies` says why.
"""

import asyncio
import http.client
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from examples.client import ChildTransport
from outside.gateway import Gateway, gateway
from outside.program import BIN, HERE, OFFLINE, run
from trunkline.jsonrpc import Connection, from_raw

pytestmark = pytest.mark.asyncio(loop_scope="module")

PYPI = HERE.parent / ".venv-servers" / "bin"
MODULES = HERE / "node_modules"


class Server(NamedTuple):
    """A server, a tool and its arguments; WORK stands for the directory of the files."""

    command: list[str | Path]
    tool: str
    arguments: dict[str, Any]
    env: dict[str, str] | None = None
    varies: str = ""


THOUGHT = {"thought": "42", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}

SERVERS = {
    # npm
    "budget": Server([BIN / "mcp-budget-allocator-server", "--stdio"], "get-budget-data", {}),
    "calculator": Server([BIN / "calculator-mcp"], "add", {"a": 19, "b": 23}),
    "code-runner": Server(
        [BIN / "mcp-server-code-runner"],
        "run-code",
        {"code": "console.log(6 * 7)", "languageId": "javascript"},
    ),
    "commands": Server([BIN / "mcp-server-commands"], "run_command", {"command": "echo 42"}),
    "debug": Server(
        [BIN / "mcp-server-debug", "--stdio"],
        "debug-tool",
        {"contentType": "mixed"},
        varies="the result has the time",
    ),
    "eslint": Server(
        ["node", MODULES / "@eslint/mcp/src/mcp-cli.js"],
        "lint-files",
        {"filePaths": ["WORK/hello.js"]},
    ),
    "everything": Server(
        [BIN / "mcp-server-everything"], "get-structured-content", {"location": "Chicago"}
    ),
    "filesystem": Server(
        [BIN / "mcp-server-filesystem", "WORK"], "read_text_file", {"path": "WORK/hello.js"}
    ),
    "hello-world": Server([BIN / "mcp-hello-world"], "echo", {"message": "é \U0001f980"}),
    "memory": Server(
        [BIN / "mcp-server-memory"], "read_graph", {}, {"MEMORY_FILE_PATH": "WORK/memory.jsonl"}
    ),
    "memory-bank": Server(
        [BIN / "mcp-server-memory-bank"], "list_projects", {}, {"MEMORY_BANK_ROOT": "WORK"}
    ),
    "notes": Server([BIN / "mcp-obsidian", "WORK"], "search_notes", {"query": "note"}),
    "openapi": Server(
        [
            BIN / "openapi-mcp-server",
            "--api-base-url=http://127.0.0.1:1",
            "--openapi-spec=WORK/openapi.json",
        ],
        "ping",
        {},
    ),
    "pdf": Server([BIN / "mcp-pdf-server", "--stdio"], "list_pdfs", {}),
    "playwright": Server([BIN / "playwright-mcp"], "browser_close", {}),
    "scenario": Server([BIN / "mcp-scenario-modeler-server", "--stdio"], "get-scenario-data", {}),
    "tasks": Server(
        [BIN / "mcp-taskmanager"], "list_requests", {}, {"TASK_MANAGER_FILE_PATH": "WORK/tasks"}
    ),
    "thinking": Server([BIN / "mcp-server-sequential-thinking"], "sequentialthinking", THOUGHT),
    "thinking-tools": Server(
        [BIN / "mcp-sequentialthinking-tools"],
        "sequentialthinking_tools",
        {
            "available_mcp_tools": [],
            "thought": "42",
            "thought_number": 1,
            "total_thoughts": 1,
            "next_thought_needed": False,
        },
    ),
    "threejs": Server([BIN / "mcp-threejs-server", "--stdio"], "learn_threejs", {}),
    "time-npm": Server([BIN / "time-mcp"], "days_in_month", {"date": "2024-02-01"}),
    "vault": Server([BIN / "mcpvault", "WORK"], "read_note", {"path": "note.md"}),
    # PyPI, official SDK of the second generation
    "git": Server(
        [sys.executable, "-m", "mcp_server_git"], "git_status", {"repo_path": "WORK/repository"}
    ),
    "time": Server(
        [sys.executable, "-m", "mcp_server_time", "--local-timezone=UTC"],
        "get_current_time",
        {"timezone": "UTC"},
        varies="the result is the time",
    ),
    # PyPI, official SDK of the first generation
    "alchemy": Server(
        [PYPI / "mcp-alchemy"],
        "execute_query",
        {"query": "SELECT 6 * 7"},
        {"DB_URL": "sqlite:///WORK/alchemy.db"},
    ),
    "calculator-pypi": Server(
        [PYPI / "mcp-server-calculator"], "calculate", {"expression": "6 * 7"}
    ),
    "cli": Server([PYPI / "cli-mcp-server"], "show_security_rules", {}, {"ALLOWED_DIR": "WORK"}),
    "dice": Server([PYPI / "mcp-dice"], "roll_dice", {"notation": "2d1"}),
    "duckdb": Server(
        [PYPI / "mcp-server-duckdb", "--db-path", "WORK/duck.db"],
        "query",
        {"query": "SELECT 6 * 7"},
    ),
    "excel": Server(
        [PYPI / "excel-mcp-server", "stdio"], "get_workbook_metadata", {"filepath": "WORK/no.xlsx"}
    ),
    "fetch": Server([PYPI / "mcp-server-fetch"], "fetch", {"url": "http://127.0.0.1:1/"}),
    "math": Server([PYPI / "mcp-server-math"], "sum", {"numbers": [19, 23]}),
    "math-fastmcp": Server([PYPI / "math-mcp-server"], "addition", {"a": "19", "b": "23"}),
    "python": Server(
        [PYPI / "mcp-python-interpreter", "--dir", "WORK"],
        "run_python_code",
        {"code": "print(6 * 7)"},
    ),
    "random": Server([PYPI / "random-number-mcp"], "random_int", {"low": 42, "high": 42}),
    "sqlite": Server(
        [PYPI / "mcp-server-sqlite", "--db-path", "WORK/sqlite.db"], "list_tables", {}
    ),
    "text-editor": Server(
        [PYPI / "mcp-text-editor"],
        "get_text_file_contents",
        {"files": [{"file_path": "WORK/hello.js", "ranges": [{"start": 1}]}]},
    ),
    "uuid": Server([PYPI / "uuid-mcp"], "generate_uuid", {}, varies="the result is random"),
    "word": Server([PYPI / "word_mcp_server"], "list_available_documents", {"directory": "WORK"}),
}


class HttpTransport:
    """Streamable HTTP for one request at a time, with the payloads as they are."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._headers = {"Accept": "application/json, text/event-stream"}
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue()

    def _post(self, payload: bytes) -> bytes:
        connection = http.client.HTTPConnection(self._url.netloc, timeout=60)
        headers = self._headers | {"Content-Type": "application/json"}
        connection.request("POST", self._url.path, payload, headers)
        response = connection.getresponse()
        if session := response.headers.get("Mcp-Session-Id"):
            self._headers["Mcp-Session-Id"] = session
        body = response.read()
        connection.close()
        return body

    async def send(self, payload: bytes) -> None:
        body = await asyncio.to_thread(self._post, payload)
        if body.startswith(b"{"):
            self._received.put_nowait(body)
        for line in body.splitlines():
            if line.startswith(b"data: {"):
                self._received.put_nowait(line.removeprefix(b"data: "))

    async def receive(self) -> bytes | None:
        return await self._received.get()

    async def aclose(self) -> None:
        self._received.put_nowait(None)


@asynccontextmanager
async def session(transport: Any) -> AsyncIterator[Connection]:
    """Initialize a session as a client without capabilities."""
    async with asyncio.timeout(60), Connection(transport) as connection:
        client = {"name": "outside", "version": "0"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        await connection.call("initialize", hello)
        await connection.notify("notifications/initialized")
        yield connection


async def list_tools(connection: Connection) -> list[dict[str, Any]]:
    found, params = [], {}
    while True:
        page = from_raw(await connection.call("tools/list", params), dict[str, Any])
        found += page["tools"]
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    (folder / "hello.js").write_text("const answer = 42;\n")
    (folder / "eslint.config.js").write_text('module.exports = [{ rules: { semi: "error" } }];\n')
    (folder / "note.md").write_text("---\ntag: é\n---\n# Note\n")
    api = {"paths": {"/ping": {"get": {"operationId": "ping", "responses": {}}}}}
    head = {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}}
    (folder / "openapi.json").write_text(json.dumps(head | api))
    assert (await run("git", "init", "-b", "main", folder / "repository"))[0] == 0
    return folder


def at(work: Path, value: Any) -> Any:
    """Return the value with the directory in place of WORK."""
    return json.loads(json.dumps(value, default=str).replace("WORK", str(work)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(work: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A gateway in front of all servers, which are ready."""
    servers: dict[str, dict[str, Any]] = {}
    for name, server in SERVERS.items():
        command, *args = at(work, server.command)
        env = OFFLINE | at(work, server.env or {})
        servers[name] = {"command": command, "args": args, "env": env, "cwd": str(work)}
    async with gateway(tmp_path_factory.mktemp("gateway"), servers) as started:
        ready: set[str] = set()
        async with session(HttpTransport(started.mcp)) as client:
            while not servers.keys() <= ready:
                ready = {tool["name"].split("__")[0] for tool in await list_tools(client)}
        yield started


@pytest.mark.parametrize("name", SERVERS)
async def test_a_server_answers_the_same_through_the_gateway(
    name: str, site: Gateway, work: Path
) -> None:
    server, arguments = SERVERS[name], at(work, SERVERS[name].arguments)
    env = (
        {"PATH": os.environ["PATH"], "HOME": str(Path.home())}
        | OFFLINE
        | at(work, server.env or {})
    )
    child = await create_subprocess_exec(
        *at(work, server.command),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env=env,
        cwd=work,
        limit=1 << 24,
    )
    async with session(ChildTransport(child)) as direct:
        tools = await list_tools(direct)
        params = {"name": server.tool, "arguments": arguments}
        result = bytes(await direct.call("tools/call", params))
    async with session(HttpTransport(site.mcp)) as client:
        params = {"name": f"{name}__{server.tool}", "arguments": arguments}
        forwarded = bytes(await client.call("tools/call", params))
        listed = [tool for tool in await list_tools(client) if tool["name"].startswith(f"{name}__")]
    expected = [tool | {"name": f"{name}__{tool['name']}"} for tool in tools]
    for tool in expected:
        tool.pop("execution", None)  # clients are not offered tasks
    assert listed == expected
    if not server.varies:
        assert forwarded == result
