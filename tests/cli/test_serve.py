"""`trunkline serve`, started by a client and started in a terminal."""

import asyncio
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.samples import BROKEN, OPERATOR, config, fetch, hello, run
from tests.http.scripted_server import CERTIFICATE, KEY
from tests.tasks import HANG_TIMEOUT, hang_guard
from trunkline import __version__
from trunkline.admin.service import SwitchFile
from trunkline.app.application import App
from trunkline.cli.serve import address_lines, restore_blocking, startup_lines, terminal_help
from trunkline.config import Config, HttpSettings, load_config

SERVE = [sys.executable, "-m", "trunkline", "serve"]


def environment(folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TRUNKLINE_CONFIG"}
    return inherited | {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}


class TerminalUser:
    """A user who runs the program in a terminal and reads its output."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.terminal, far = pty.openpty()
        self.process = subprocess.Popen(
            [*SERVE, *arguments],
            stdin=far,
            stdout=far,
            stderr=far,
            env=environment(folder),
            cwd=folder,
        )
        os.close(far)
        self.seen = ""

    async def read_until(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        loop.add_reader(self.terminal, arrived.set)
        try:
            async with hang_guard():
                while text not in self.seen:
                    await arrived.wait()
                    arrived.clear()
                    self.seen += os.read(self.terminal, 65536).decode()
        finally:
            loop.remove_reader(self.terminal)

    async def wait(self) -> int:
        async with hang_guard():
            return await asyncio.to_thread(self.process.wait)


@pytest.mark.parametrize("end", ["ctrl-d", "ctrl-c"])
async def test_serve_in_a_terminal_prints_instructions_and_can_be_ended(
    end: str, tmp_path: Path
) -> None:
    user = TerminalUser(tmp_path)
    await user.read_until("}\r\n}\r\n")
    assert "waits for an MCP client on stdin" in user.seen
    assert "Built-in tools: trunkline__status" in user.seen
    assert str(tmp_path / ".config" / "Claude" / "claude_desktop_config.json") in user.seen
    assert '"mcpServers"' in user.seen
    os.write(user.terminal, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    await user.read_until('"result":{}')
    if end == "ctrl-d":
        os.write(user.terminal, b"\x04")
    else:
        user.process.send_signal(signal.SIGINT)
    assert await user.wait() == 0
    os.close(user.terminal)


def serve(folder: Path, *arguments: str, stdin: int | None = None) -> "subprocess.Popen[bytes]":
    """Start `trunkline serve` with a pipe, or with the given stdin."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*SERVE, *arguments],
        stdin=pipe if stdin is None else stdin,
        stdout=pipe,
        stderr=pipe,
        env=environment(folder),
        cwd=folder,
    )


@pytest.mark.holds("O4.1")
def test_serve_for_a_client_prints_one_line_on_stderr_and_nothing_on_stdout(tmp_path: Path) -> None:
    file = config(tmp_path, BROKEN, OPERATOR)
    with serve(tmp_path, "--config", file) as process:
        out, err = process.communicate(timeout=HANG_TIMEOUT)
    assert (process.returncode, out) == (0, b"")
    assert err.decode() == f"trunkline {__version__}: MCP over stdio, 2 servers ({file})\n"


def test_a_metrics_port_in_use_stops_a_server_but_not_a_gateway_of_one_client(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        metrics = f'[metrics]\nlisten = "{address}"\n'
        error = f"metrics.listen: {address}: address already in use; choose another port"
        with serve(tmp_path, "--config", config(tmp_path, OPERATOR, metrics)) as process:
            ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
            out, err = process.communicate(ping, timeout=HANG_TIMEOUT)
        assert (process.returncode, json.loads(out)["result"]) == (0, {})
        assert f"this gateway serves no metrics: {error}\n" in err.decode()
        place = config(tmp_path, OPERATOR, metrics)
        with serve(tmp_path, "--http", "127.0.0.1:0", "--config", place) as process:
            _, err = process.communicate(timeout=HANG_TIMEOUT)
        assert (process.returncode, err.decode()) == (1, f"trunkline: cannot serve: {error}\n")


@pytest.mark.holds("O0.4")
def test_an_invalid_configuration_exits_with_two_and_lists_every_error(tmp_path: Path) -> None:
    with serve(tmp_path, "--config", config(tmp_path, "a = 1\nb = 2")) as process:
        out, err = process.communicate(timeout=HANG_TIMEOUT)
    assert (process.returncode, out) == (2, b"")
    assert len(err.splitlines()) == 2
    assert b"Traceback" not in err


@pytest.mark.parametrize("name", [os.devnull, __file__])
def test_a_file_as_stdin_is_refused(name: str, tmp_path: Path) -> None:
    with Path(name).open("rb") as file, serve(tmp_path, stdin=file.fileno()) as process:
        out, err = process.communicate(timeout=HANG_TIMEOUT)
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"trunkline: cannot serve: stdin is a file")


def test_a_gateway_without_a_control_socket_still_serves_and_warns(tmp_path: Path) -> None:
    (tmp_path / f"trunkline-{os.getuid()}").mkdir(mode=0o755)
    with serve(tmp_path) as process:
        out, err = process.communicate(
            b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n', timeout=HANG_TIMEOUT
        )
    assert (process.returncode, out) == (0, b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
    assert err.startswith(b"trunkline: `trunkline kill` and `ps` cannot reach this gateway: ")
    assert err.count(b"cannot reach") == 1
    assert b"is open to others (mode 0755)" in err


def test_startup_lines_contain_the_notes_of_the_configuration() -> None:
    lines = startup_lines(Config(notes=("a note",)))
    assert lines == [
        f"trunkline {__version__}: MCP over stdio, 0 servers (embedded default)",
        "trunkline: a note",
    ]
    assert ": MCP over HTTP, 0 servers" in startup_lines(Config(), stdio=False, http=True)[0]
    assert (
        ": MCP over stdio and HTTP, 0 servers" in startup_lines(Config(), stdio=True, http=True)[0]
    )


def test_serve_restores_the_blocking_mode_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, bool]] = []

    def set_blocking(number: int, blocking: bool) -> None:
        set_to.append((number, blocking))
        if number == 0:
            raise OSError("closed")

    def get_blocking(number: int) -> bool:
        return True

    monkeypatch.setattr(os, "get_blocking", get_blocking)
    monkeypatch.setattr(os, "set_blocking", set_blocking)
    with restore_blocking():
        pass
    assert set_to == [(0, True), (1, True)]


# Over HTTP

README = Path(__file__).parents[2] / "README.md"


def printed_url(process: "subprocess.Popen[bytes]") -> str:
    """Return the MCP URL that a gateway prints; fail if it ends without one."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.match(r"MCP at (\S+)\n", line.decode()):
            return found[1]
    raise AssertionError("the gateway ended without printing its URL")


async def test_the_curl_example_of_the_readme_works(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^curl .*$", text, re.MULTILINE)
    _, _, url, *options = shlex.split(line)
    curl_options = dict(zip(options[::2], options[1::2], strict=True))
    headers = dict(o.split(": ", 1) for o in options if ": " in o and not o.startswith("{"))
    assert url == "http://127.0.0.1:8080/mcp"
    with serve(tmp_path, "--http", "127.0.0.1:0", stdin=subprocess.DEVNULL) as process:
        answer = await fetch(printed_url(process), json.loads(curl_options["-d"]), headers)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=HANG_TIMEOUT)
    names = [tool["name"] for tool in answer.result["tools"]]
    assert names[:3] == ["trunkline__status", "trunkline__logs", "sources__get_sources"]
    assert (process.returncode, out) == (0, b"")
    assert b"Traceback" not in err


@pytest.mark.holds("C28")
async def test_stdio_and_http_are_served_together_until_stdin_ends(tmp_path: Path) -> None:
    with serve(tmp_path, "--stdio", "--http", "127.0.0.1:0") as process:
        url = printed_url(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        process.stdin.flush()
        assert b'"result":{}' in await asyncio.to_thread(process.stdout.readline)
        assert (await fetch(url, hello())).status == 200
        out, err = process.communicate(timeout=HANG_TIMEOUT)
    assert (process.returncode, out) == (0, b"")
    assert b"Traceback" not in err


async def test_serve_uses_the_configured_address_unless_an_option_overrides_it(
    tmp_path: Path,
) -> None:
    http_table = '[http]\nlisten = "127.0.0.1:0"\npath = "/here"'
    file = config(tmp_path, http_table, OPERATOR)
    with serve(tmp_path, "--config", file, stdin=subprocess.DEVNULL) as process:
        url = printed_url(process)
        assert url.endswith("/here")
        assert (await fetch(url, hello())).status == 200
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_TIMEOUT)
    assert process.returncode == 0
    with serve(tmp_path, "--stdio", "--config", file) as process:
        _, err = process.communicate(timeout=HANG_TIMEOUT)
    assert err.decode() == f"trunkline {__version__}: MCP over stdio, 1 server ({file})\n"
    with serve(
        tmp_path, "--config", file, "--http", "localhost:0", stdin=subprocess.DEVNULL
    ) as process:
        assert (await fetch(printed_url(process), hello())).status == 200
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_TIMEOUT)


def test_with_the_json_log_format_every_line_on_stderr_is_json(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "no-folder").touch()
    audit = '[audit]\nurl = "sqlite:///no-folder/audit.db"'
    tables = ('[gateway]\nstate_dir = "state"', '[log]\nformat = "json"', audit, OPERATOR)
    file = config(tmp_path, *tables)
    SwitchFile(state, Path(file)).path.write_text("nonsense")
    arguments = ("--http", "127.0.0.1:0", "--config", file)
    lines: list[dict[str, str]] = []
    with serve(tmp_path, *arguments, stdin=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(json.loads(line))
            if {"announced", "audit"} <= {entry["event"] for entry in lines}:
                break
        process.send_signal(signal.SIGTERM)
        lines += map(json.loads, process.communicate(timeout=HANG_TIMEOUT)[1].splitlines())
    by_event = {line["event"]: line for line in lines}
    assert by_event["admin"]["level"] == "error"
    assert "everything is disabled" in by_event["admin"]["message"]
    assert any(line["message"].startswith("cannot write the audit log") for line in lines)


def test_a_port_in_use_exits_with_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        with serve(tmp_path, "--http", place, stdin=subprocess.DEVNULL) as process:
            out, err = process.communicate(timeout=HANG_TIMEOUT)
    assert (process.returncode, out) == (1, b"")
    messages = [line for line in err.decode().splitlines() if not line.startswith("{")]
    assert messages[0] == f"trunkline: cannot serve: {place}: address already in use"
    assert messages[1].startswith("trunkline: choose another port with --http or http.listen")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0:8080", "expected a loopback address: without [auth] every client"),
        ("gateway.example:8080", "expected a loopback address"),
        ("8080", "expected a host and a port; write 127.0.0.1:8080"),
        (":8080", "expected a host and a port"),
        ("127.0.0.1:99999", "expected a port of at most 65535"),
    ],
)
def test_the_http_option_is_validated_like_the_configuration(address: str, why: str) -> None:
    result = run("serve", "--http", address)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"trunkline: --http: {why}")


def test_a_server_url_at_the_own_address_exits_with_two(tmp_path: Path) -> None:
    file = config(tmp_path, "[servers.me]\nurl = 'http://localhost:8080/mcp'\n")
    arguments = ("--http", "127.0.0.1:8080", "--config", file)
    with serve(tmp_path, *arguments, stdin=subprocess.DEVNULL) as process:
        out, err = process.communicate(timeout=HANG_TIMEOUT)
    assert (process.returncode, out) == (2, b"")
    why = "it is the address of this gateway, 127.0.0.1:8080"
    fix = "remove the server, or listen elsewhere"
    assert err.decode() == f"trunkline: {file}: servers.me.url: {why}; {fix}\n"


def test_a_missing_certificate_exits_with_two(tmp_path: Path) -> None:
    http_table = '[http]\nlisten = "127.0.0.1:0"\ntls_cert = "a.pem"\ntls_key = "b.pem"'
    result = run("serve", "--config", config(tmp_path, http_table))
    assert (result.exit_code, result.stdout) == (2, "")
    for line, key in zip(result.stderr.splitlines(), ("tls_cert", "tls_key"), strict=True):
        assert f"http.{key}: cannot be read: no such file or directory; " in line


def test_an_invalid_certificate_exits_with_one(tmp_path: Path) -> None:
    (tmp_path / "a.pem").touch()
    http_table = '[http]\nlisten = "127.0.0.1:0"\ntls_cert = "a.pem"\ntls_key = "a.pem"'
    with serve(
        tmp_path, "--config", config(tmp_path, http_table), stdin=subprocess.DEVNULL
    ) as process:
        out, err = process.communicate(timeout=HANG_TIMEOUT)
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"trunkline: cannot serve: expected a certificate and its key, got ")
    assert len(err.splitlines()) == 1


async def test_serve_with_http_in_a_terminal_prints_its_url_and_a_client_snippet(
    tmp_path: Path,
) -> None:
    user = TerminalUser(tmp_path, "--http", "127.0.0.1:0")
    await user.read_until("}\r\n}\r\n")
    found = re.search(r"MCP at (\S+)", user.seen)
    assert found is not None
    assert f'"url": "{found[1]}"' in user.seen
    assert str(tmp_path / ".cursor" / "mcp.json") in user.seen
    assert f"`trunkline client-config CLIENT --http {found[1]}`" in user.seen
    assert "Built-in tools: trunkline__status" in user.seen
    user.process.send_signal(signal.SIGINT)
    assert await user.wait() == 0
    os.close(user.terminal)


def test_address_lines_name_every_endpoint_with_its_scheme() -> None:
    lines = address_lines(["https://127.0.0.1:1", "https://[::1]:1"], HttpSettings(ws_path="/w"))
    assert lines[0] == "MCP at https://127.0.0.1:1/mcp"
    assert "wss://127.0.0.1:1/w" in lines[1]
    assert lines[3] == "MCP at https://[::1]:1/mcp"


def test_address_lines_name_no_address_that_clients_cannot_connect_to() -> None:
    lines = address_lines(["http://0.0.0.0:1", "http://[::]:1"], HttpSettings())
    assert [line for line in lines if "0.0.0.0" in line or "[::]" in line] == []
    assert lines[0] == "MCP at http://127.0.0.1:1/mcp"
    assert lines[3] == "  other machines use another name; http.public_url tells clients which"
    assert lines[4] == "MCP at http://[::1]:1/mcp"


def test_address_lines_begin_with_the_public_url() -> None:
    http = HttpSettings(public_url="https://gw.example/tools/")
    lines = address_lines(["http://0.0.0.0:1"], http)
    assert lines[:3] == [
        "Clients connect to https://gw.example/tools/mcp",
        "  for old clients: HTTP+SSE at https://gw.example/tools/sse, "
        "WebSocket at wss://gw.example/tools/ws",
        "MCP at http://127.0.0.1:1/mcp",
    ]
    assert "other machines" not in "".join(lines)


API_KEYS = '[auth]\nmode = "api_key"\n'
WITH_TLS = 'tls_cert = "cert.pem"\ntls_key = "key.pem"\n'


@pytest.mark.parametrize(
    ("http", "auth", "url"),
    [
        ('listen = "127.0.0.1:0"', "", r"http://127\.0\.0\.1:\d+/mcp"),
        ('listen = "127.0.0.1:0"', API_KEYS, r"http://127\.0\.0\.1:\d+/mcp"),
        ('listen = "0.0.0.0:0"', API_KEYS, r"http://127\.0\.0\.1:\d+/mcp"),
        (f'listen = "0.0.0.0:0"\n{WITH_TLS}', API_KEYS, r"https://127\.0\.0\.1:\d+/mcp"),
        (
            'listen = "0.0.0.0:0"\npublic_url = "https://gw.example/tools"',
            API_KEYS,
            r"https://gw\.example/tools/mcp",
        ),
    ],
)
async def test_the_entry_that_serve_prints_works(
    http: str, auth: str, url: str, tmp_path: Path
) -> None:
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    (tmp_path / "key.pem").chmod(0o600)
    file = config(tmp_path, f"[http]\n{http}", auth, OPERATOR)
    user = TerminalUser(tmp_path, "--config", file)
    await user.read_until("}\r\n}\r\n")
    text = user.seen.replace("\r\n", "\n")
    snippet, _ = json.JSONDecoder().raw_decode(text, text.index("\n{\n") + 1)
    (entry,) = snippet["mcpServers"].values()
    assert re.fullmatch(url, entry.pop("url"))
    header = {"Authorization": "Bearer ${env:TRUNKLINE_TOKEN}"}
    assert entry == ({"headers": header} if auth else {})
    assert ("Set TRUNKLINE_TOKEN to a token or key" in text) is bool(auth)
    assert re.search(rf"`trunkline client-config CLIENT --http {url}`", text)
    user.process.send_signal(signal.SIGINT)
    assert await user.wait() == 0
    os.close(user.terminal)


async def test_serve_names_clients_that_start_its_servers_too(tmp_path: Path) -> None:
    server = {"command": "/nonexistent/program"}
    for name in (".cursor/mcp.json", ".codeium/windsurf/mcp_config.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(json.dumps({"mcpServers": {"mine": server, "b": {}}}))
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "settings.json").write_text("{nonsense")
    file = config(tmp_path, BROKEN)
    user = TerminalUser(tmp_path, "--http", "127.0.0.1:0", "--config", file)
    for title, name in (("Cursor", "cursor"), ("Windsurf", "windsurf")):
        fix = f"`trunkline client-config {name} --write` removes that"
        await user.read_until(f"{title} starts mine itself, too: {fix}")
    assert "Gemini" not in user.seen
    user.process.send_signal(signal.SIGINT)
    assert await user.wait() == 0
    os.close(user.terminal)


async def test_the_entry_for_stdio_has_a_place_for_the_token(tmp_path: Path) -> None:
    file = Path(config(tmp_path, API_KEYS, OPERATOR))
    loaded = load_config(file, {"HOME": str(tmp_path)})
    app = App(loaded)
    async with app.running():
        lines = await terminal_help(app, loaded)
    (snippet,) = (line for line in lines if line.startswith("{"))
    (entry,) = json.loads(snippet)["mcpServers"].values()
    assert entry["args"][-3:] == ["--stdio", "--config", str(file)]
    assert entry["env"] == {"TRUNKLINE_TOKEN": "PASTE-A-KEY-HERE"}
    assert any("Replace PASTE-A-KEY-HERE by a token or key" in line for line in lines)


def test_exposing_the_gateway_by_option_requires_auth_and_warns(tmp_path: Path) -> None:
    auth_config = config(tmp_path, '[auth]\nmode = "api_key"\n', OPERATOR)
    (tmp_path / "nothing").touch()
    with (tmp_path / "nothing").open() as nothing:
        result = subprocess.run(
            [*SERVE, "--stdio", "--http", "0.0.0.0:0", "--config", auth_config],
            env=environment(tmp_path),
            stdin=nothing,
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )
    assert result.returncode == 1  # stdin is a file
    assert "--http: tokens are sent unencrypted" in result.stderr


def test_exposing_unprotected_metrics_by_option_is_refused(tmp_path: Path) -> None:
    file = config(tmp_path, '[auth]\nmode = "api_key"\n[metrics]\npath = "/m"\n', OPERATOR)
    result = run("serve", "--http", "0.0.0.0:0", "--config", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "trunkline: --http: [metrics] path = '/m': everyone who reaches that address could read "
        "them; set token_env in [metrics], or set listen in [metrics]\n"
    )
