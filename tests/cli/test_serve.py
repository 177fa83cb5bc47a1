"""`trunkline serve`, as clients and as people start it."""

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
from trunkline import __version__
from trunkline.cli.serve import blocking_again, greeting, where
from trunkline.config import Config, HttpSettings
from trunkline.operator.switch_file import SwitchFile

SERVE = [sys.executable, "-m", "trunkline", "serve"]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRUNKLINE_CONFIG"}
    return kept | {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}


class Person:
    """Somebody at a terminal, who runs the program there and reads what it says."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.keyboard, far = pty.openpty()
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
        loop.add_reader(self.keyboard, arrived.set)
        try:
            async with asyncio.timeout(20):
                while text not in self.seen:
                    await arrived.wait()
                    arrived.clear()
                    self.seen += os.read(self.keyboard, 65536).decode()
        finally:
            loop.remove_reader(self.keyboard)

    async def wait(self) -> int:
        async with asyncio.timeout(20):
            return await asyncio.to_thread(self.process.wait)


@pytest.mark.parametrize("end", ["ctrl-d", "ctrl-c"])
async def test_a_person_is_told_what_it_is_for_and_can_end_it(end: str, tmp_path: Path) -> None:
    person = Person(tmp_path)
    await person.read_until("}\r\n}\r\n")
    assert "waits for an MCP client on stdin" in person.seen
    assert "Built-in tools: trunkline__status" in person.seen
    assert str(tmp_path / ".config" / "Claude" / "claude_desktop_config.json") in person.seen
    assert '"mcpServers"' in person.seen
    os.write(person.keyboard, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    await person.read_until('"result":{}')
    if end == "ctrl-d":
        os.write(person.keyboard, b"\x04")
    else:
        person.process.send_signal(signal.SIGINT)
    assert await person.wait() == 0
    os.close(person.keyboard)


def serve(folder: Path, *arguments: str, stdin: int | None = None) -> "subprocess.Popen[bytes]":
    """Serve a client that ends at once, or has something else than a pipe."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*SERVE, *arguments],
        stdin=pipe if stdin is None else stdin,
        stdout=pipe,
        stderr=pipe,
        env=environment(folder),
        cwd=folder,
    )


def test_a_client_gets_one_line_on_stderr_and_nothing_on_stdout(tmp_path: Path) -> None:
    file = config(tmp_path, BROKEN, OPERATOR)
    with serve(tmp_path, "--config", file) as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"")
    assert err.decode() == f"trunkline {__version__}: MCP over stdio, 2 servers ({file})\n"


def test_a_bad_configuration_ends_with_two_and_all_that_is_wrong(tmp_path: Path) -> None:
    with serve(tmp_path, "--config", config(tmp_path, "a = 1\nb = 2")) as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, b"")
    assert len(err.splitlines()) == 2
    assert b"Traceback" not in err


@pytest.mark.parametrize("name", [os.devnull, __file__])
def test_a_file_for_stdin_is_refused_plainly(name: str, tmp_path: Path) -> None:
    with Path(name).open("rb") as file, serve(tmp_path, stdin=file.fileno()) as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"trunkline: cannot serve: stdin is a file")


def test_a_gateway_that_cannot_be_seen_serves_all_the_same_and_says_so(tmp_path: Path) -> None:
    (tmp_path / f"trunkline-{os.getuid()}").mkdir(mode=0o755)
    with serve(tmp_path) as process:
        out, err = process.communicate(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n', timeout=20)
    assert (process.returncode, out) == (0, b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
    assert err.startswith(b"trunkline: `trunkline ps` will not show this gateway: ")
    assert err.count(b"will not show") == 1


def test_notes_on_the_configuration_are_in_the_greeting() -> None:
    lines = greeting(Config(notes=("a note",)))
    assert lines == [
        f"trunkline {__version__}: MCP over stdio, 0 servers (embedded default)",
        "trunkline: a note",
    ]
    assert ": MCP over HTTP, 0 servers" in greeting(Config(), stdio=False, http=True)[0]
    assert ": MCP over stdio and HTTP, 0 servers" in greeting(Config(), stdio=True, http=True)[0]


def test_a_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, bool]] = []

    def set_blocking(number: int, blocking: bool) -> None:
        set_to.append((number, blocking))
        if number == 0:
            raise OSError("closed")

    def get_blocking(number: int) -> bool:
        return True

    monkeypatch.setattr(os, "get_blocking", get_blocking)
    monkeypatch.setattr(os, "set_blocking", set_blocking)
    with blocking_again():
        pass
    assert set_to == [(0, True), (1, True)]


# Over HTTP

README = Path(__file__).parents[2] / "README.md"


def listening(process: "subprocess.Popen[bytes]") -> str:
    """Return where a gateway says that MCP is; there is an end if it never does."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.match(r"MCP at (\S+)\n", line.decode()):
            return found[1]
    raise AssertionError("it never said where it is")


async def test_the_first_minutes_of_the_readme_work(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^curl .*$", text, re.MULTILINE)
    _, _, url, *options = shlex.split(line)
    given = dict(zip(options[::2], options[1::2], strict=True))
    headers = dict(o.split(": ", 1) for o in options if ": " in o and not o.startswith("{"))
    assert url == "http://127.0.0.1:8080/mcp"
    with serve(tmp_path, "--http", "127.0.0.1:0", stdin=subprocess.DEVNULL) as process:
        answer = await fetch(listening(process), json.loads(given["-d"]), headers)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    names = [tool["name"] for tool in answer.result["tools"]]
    assert names[:3] == ["trunkline__status", "trunkline__logs", "sources__get_sources"]
    assert (process.returncode, out) == (0, b"")
    assert b"Traceback" not in err


async def test_stdio_and_http_are_served_together_until_stdin_ends(tmp_path: Path) -> None:
    with serve(tmp_path, "--stdio", "--http", "127.0.0.1:0") as process:
        url = listening(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        process.stdin.flush()
        assert b'"result":{}' in await asyncio.to_thread(process.stdout.readline)
        assert (await fetch(url, hello())).status == 200
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"")
    assert b"Traceback" not in err


async def test_the_configuration_says_where_and_options_go_before_it(tmp_path: Path) -> None:
    web = '[http]\nlisten = "127.0.0.1:0"\npath = "/here"'
    file = config(tmp_path, web, OPERATOR)
    with serve(tmp_path, "--config", file, stdin=subprocess.DEVNULL) as process:
        url = listening(process)
        assert url.endswith("/here")
        assert (await fetch(url, hello())).status == 200
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0
    with serve(tmp_path, "--stdio", "--config", file) as process:
        _, err = process.communicate(timeout=20)
    assert err.decode() == f"trunkline {__version__}: MCP over stdio, 1 server ({file})\n"
    with serve(
        tmp_path, "--config", file, "--http", "localhost:0", stdin=subprocess.DEVNULL
    ) as process:
        assert (await fetch(listening(process), hello())).status == 200
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def test_for_programs_all_lines_are_json_whoever_writes_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "no-folder").touch()
    journal = '[journal]\nurl = "sqlite:///no-folder/journal.db"'
    tables = ('[gateway]\nstate = "state"', '[log]\nformat = "json"', journal, OPERATOR)
    file = config(tmp_path, *tables)
    SwitchFile(state, Path(file)).path.write_text("nonsense")
    arguments = ("--http", "127.0.0.1:0", "--config", file)
    lines: list[dict[str, str]] = []
    with serve(tmp_path, *arguments, stdin=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(json.loads(line))
            if {"announced", "journal"} <= {each["event"] for each in lines}:
                break
        process.send_signal(signal.SIGTERM)
        lines += map(json.loads, process.communicate(timeout=20)[1].splitlines())
    said = {line["event"]: line for line in lines}
    assert said["operator"]["level"] == "error"
    assert "everything is stopped" in said["operator"]["message"]
    assert any(line["message"].startswith("the journal cannot be written") for line in lines)


def test_a_port_that_is_taken_ends_with_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        with serve(tmp_path, "--http", place, stdin=subprocess.DEVNULL) as process:
            out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, b"")
    said = [line for line in err.decode().splitlines() if not line.startswith("{")]
    assert said == [f"trunkline: cannot serve: {place}: address already in use"]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0:8080", "expected a loopback address: nobody is asked who they are"),
        ("gateway.example:8080", "expected a loopback address"),
        ("8080", "expected a host and a port; write 127.0.0.1:8080"),
        (":8080", "expected a host and a port"),
        ("127.0.0.1:99999", "expected a port of at most 65535"),
    ],
)
def test_an_address_is_checked_as_in_the_configuration(address: str, why: str) -> None:
    done = run("serve", "--http", address)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"trunkline: --http: {why}")


def test_a_gateway_that_would_be_behind_itself_ends_with_two(tmp_path: Path) -> None:
    file = config(tmp_path, "[servers.me]\nurl = 'http://localhost:8080/mcp'\n")
    arguments = ("--http", "127.0.0.1:8080", "--config", file)
    with serve(tmp_path, *arguments, stdin=subprocess.DEVNULL) as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, b"")
    why = "it is where this gateway itself listens, 127.0.0.1:8080"
    fix = "leave the server out, or listen elsewhere"
    assert err.decode() == f"trunkline: {file}: servers.me.url: {why}; {fix}\n"


def test_a_certificate_that_is_not_there_ends_with_two(tmp_path: Path) -> None:
    web = '[http]\nlisten = "127.0.0.1:0"\ncertificate = "a.pem"\nkey = "b.pem"'
    done = run("serve", "--config", config(tmp_path, web))
    assert (done.exit_code, done.stdout) == (2, "")
    for line, key in zip(done.stderr.splitlines(), ("certificate", "key"), strict=True):
        assert f"http.{key}: cannot be read: no such file or directory; " in line


def test_one_that_is_none_ends_with_one(tmp_path: Path) -> None:
    (tmp_path / "a.pem").touch()
    web = '[http]\nlisten = "127.0.0.1:0"\ncertificate = "a.pem"\nkey = "a.pem"'
    with serve(tmp_path, "--config", config(tmp_path, web), stdin=subprocess.DEVNULL) as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"trunkline: cannot serve: expected a certificate and its key, got ")
    assert len(err.splitlines()) == 1


async def test_a_person_is_told_where_it_is_and_what_to_paste(tmp_path: Path) -> None:
    person = Person(tmp_path, "--http", "127.0.0.1:0")
    await person.read_until("}\r\n}\r\n")
    found = re.search(r"MCP at (\S+)", person.seen)
    assert found is not None
    assert f'"url": "{found[1]}"' in person.seen
    assert str(tmp_path / ".cursor" / "mcp.json") in person.seen
    assert f"`trunkline client-config CLIENT --http {found[1]}`" in person.seen
    assert "Built-in tools: trunkline__status" in person.seen
    person.process.send_signal(signal.SIGINT)
    assert await person.wait() == 0
    os.close(person.keyboard)


def test_where_it_is_has_the_scheme_and_all_ways_in() -> None:
    lines = where(["https://127.0.0.1:1", "https://[::1]:1"], HttpSettings(ws_path="/w"))
    assert lines[0] == "MCP at https://127.0.0.1:1/mcp"
    assert "wss://127.0.0.1:1/w" in lines[1]
    assert lines[3] == "MCP at https://[::1]:1/mcp"


def test_an_option_that_exposes_the_gateway_says_so_and_needs_a_guard(tmp_path: Path) -> None:
    asks = config(tmp_path, '[auth]\nmode = "key"\n', OPERATOR)
    (tmp_path / "nothing").touch()
    with (tmp_path / "nothing").open() as nothing:
        done = subprocess.run(
            [*SERVE, "--stdio", "--http", "0.0.0.0:0", "--config", asks],
            env=environment(tmp_path),
            stdin=nothing,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1  # stdin is a file
    assert "--http: tokens travel in the clear" in done.stderr


def test_an_option_exposes_no_metrics_to_those_without_a_token(tmp_path: Path) -> None:
    file = config(tmp_path, '[auth]\nmode = "key"\n[metrics]\npath = "/m"\n', OPERATOR)
    done = run("serve", "--http", "0.0.0.0:0", "--config", file)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "trunkline: --http: [metrics] path = '/m': everybody who reaches that address could read "
        "them; set token_env in [metrics], or listen for an address of their own\n"
    )
