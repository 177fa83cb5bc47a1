"""A reader of the manual: runs the commands of a page in a new directory, with a home of its own.

It leaves to `manual.py` what each block is. Addresses and folders that a test must not use are
replaced in the text before it runs; what the commands print is compared as the page shows it.

Invariants:
1. Gateways listen on ports that the system chooses; no port is chosen before it is used.
2. No program outlives its reader, and none finds the gateways of another one.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Generator, Sequence
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from tests.guides.stand_in import answer
from tests.tasks import HANG_TIMEOUT
from trunkline.config.load import load_config

ENDED = {"backend_ready", "backend_waiting", "backend_failed", "backend_disabled"}
VARIES = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d(\.\d+)?)?", "TIME"),
    (r"\b\d+(\.\d+)? m?s\b", "DURATION"),
    (r"^\d\d:\d\d:\d\d \d+(?= )", "CLOCK PID"),
    (r"^\d+(?=  ?(/|embedded default|note|tool|server|subject|all))", "PID"),
    (r"tlk_[\w-]+", "tlk_…"),
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r"\b\d+ records\b", "N records"),
    (r"(?<=the running gateway )\d+", "PID"),
    (r"^\d\.\d+(?= )", "SCORE"),
    (r"\bhome:\d+", "home:PID"),
    (r"(?<=http://127\.0\.0\.1:)\d+", "PORT"),
    (r" +", " "),
]
"""What differs from run to run, and what the comparison sees in its place."""


ADDRESS = "http://127.0.0.1:8080"
"""Where the gateways of the manual listen."""

PROGRAM = """
import math
import sys
from pathlib import Path
from trunkline.app import control
from trunkline.cli import main, startup
startup.ANNOUNCE_AFTER = math.inf
control.FALLBACK_FOLDER = Path("{folder}")
control.SERVICE_FOLDERS = ()
sys.exit(main())
"""
"""The command, for a reader whose machine may be slow: it announces no slow start.

It finds no gateways in folders that all programs of a user share.
"""


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    text: str


class Printed(NamedTuple):
    """What a command printed, stderr included, and its exit code."""

    command: str
    text: str
    status: int


def read_blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    fence = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    text = page.read_text(encoding="utf-8")
    for each in fence.finditer(text):
        content = re.sub(f"^{each[1]}", "", each[3], flags=re.MULTILINE)
        found.append(Block(text[: each.start()].count("\n") + 1, each[2], content))
    return found


def split_commands(text: str) -> list[str]:
    """Return the commands of a block; a line that ends with a backslash continues."""
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]


def normalise(text: str) -> list[str]:
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return [line.rstrip() for line in text.rstrip().splitlines()]


def matches(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed: `…` is any text, alone any lines."""
    patterns = [
        r"(.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in normalise(shown)
    ]
    return bool(
        re.fullmatch("".join(patterns), "".join(f"{each}\n" for each in normalise(printed)))
    )


def matches_json(shown: Any, printed: Any) -> bool:
    """Compare JSON: a number may differ, `…` in a text matches any text, and ends a list."""
    match shown, printed:
        case dict(), dict():
            names: set[str] = {*shown}
            return names == {*printed} and all(matches_json(shown[n], printed[n]) for n in names)
        case [*first, "…"], [*_]:
            return len(first) <= len(printed) and all(map(matches_json, first, printed))
        case [*_], [*_]:
            return len(shown) == len(printed) and all(map(matches_json, shown, printed))
        case str(), str():
            return matches(shown, printed)
        case ((int() | float()), (int() | float())):
            return True
        case _:
            return bool(shown == printed)


class Tracker(BaseHTTPRequestHandler):
    """Stands in for `https://tracker.example/mcp`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        response = answer("tracker", message)
        body = b"" if response is None else json.dumps(response).encode()
        self.send_response(202 if response is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Gateway:
    """A gateway that a page starts; its stderr is read until its servers are ready or failed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []

    def wait_for(self, is_done: Callable[[str], bool]) -> str:
        """Return the next line for which `is_done` holds."""
        assert self.process.stderr is not None
        with ends_if_it_hangs(self.process):
            for line in self.process.stderr:
                self.lines.append(line)
                if is_done(line):
                    return line
        raise AssertionError("the gateway ended:\n" + "".join(self.lines))

    def wait_ready(self, servers: set[str]) -> None:
        """Wait until every one of `servers` is ready or has failed."""
        missing = set(servers)

        def is_done(line: str) -> bool:
            if line.startswith("{"):
                event = json.loads(line)
                if event["event"] in ENDED:
                    missing.discard(event["backend"])
            return not missing

        if missing:
            self.wait_for(is_done)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with ends_if_it_hangs(self.process):
            self.process.communicate()


@contextlib.contextmanager
def ends_if_it_hangs(process: "subprocess.Popen[str]") -> Generator[None]:
    """Kill a program that hangs, and what it started, and fail."""
    hangs = threading.Event()

    def kill() -> None:
        hangs.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(HANG_TIMEOUT, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    assert not hangs.is_set(), f"it hangs: {process.args}"


class Reader:
    """Follows one page."""

    def __init__(self, programs: Sequence[Path], environ: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="reader-")  # short, for Unix sockets
        folder = Path(self._folder.name)
        self.home, self.work, self.data = folder / "home", folder / "work", folder / "data"
        self.gateway: Gateway | None = None
        self.printed: list[Printed] = []
        for each in (self.home, self.work, self.data, folder / "run", folder / "bin"):
            each.mkdir(mode=0o700)
        trunkline = folder / "bin" / "trunkline"
        trunkline.write_text(f"#!{sys.executable}\n{PROGRAM.format(folder=folder / 'run')}")
        trunkline.chmod(0o755)
        path = [str(folder / "bin"), *map(str, programs), "/usr/local/bin", "/usr/bin", "/bin"]
        self.environ = environ | {
            "HOME": str(self.home),
            "PATH": os.pathsep.join(path),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "400",
        }
        self._tracker = ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
        threading.Thread(target=self._tracker.serve_forever, daemon=True).start()
        self.replaced = {
            "https://tracker.example/mcp": f"http://127.0.0.1:{self._tracker.server_port}/mcp",
            "/home/me": str(self.home),
            "'/work/": f"'{self.work}/",
            '"/work': f'"{self.work}',
            "/data": str(self.data),
        }

    def close(self) -> None:
        self.stop_gateway()
        self._tracker.shutdown()
        self._tracker.server_close()
        self._folder.cleanup()

    def localise(self, text: str) -> str:
        """Return a text of the page with folders and addresses of this test."""
        for theirs, ours in self.replaced.items():
            text = text.replace(theirs, ours)
        return text

    def write(self, name: str, text: str, *, append: bool = False) -> None:
        """Write a file of the page; every address in it gets a port that the system chooses."""
        local = re.sub(r'(listen = "[^"]*):\d+"', r'\1:0"', self.localise(text))
        file = self.home / name
        file.parent.mkdir(exist_ok=True, parents=True)
        before = file.read_text() + "\n" if append and file.exists() else ""
        file.write_text(before + local)
        file.chmod(0o600)

    def check_config(self) -> None:
        """Read `trunkline.toml` as the gateway would; raises ConfigErrors."""
        load_config(self.home / "trunkline.toml", self.environ)

    def run(self, command: str, lines: int = 1) -> Printed:
        """Run a command in the shell; `serve` stays, and `tail` ends after `lines` lines."""
        words = command.split()
        if words[:2] == ["trunkline", "serve"]:
            return self._keep(command, self.serve(command))
        if "tail" in words[1:3]:
            return self._keep(command, self._follow(command, lines))
        local = self.localise(command)
        if "curl " in local and self.gateway is not None and "Mcp-Session-Id: …" in local:
            answers = "".join(each.text for each in self.printed)
            session = re.findall(r"^mcp-session-id: (\S+)$", answers, re.MULTILINE)[-1]
            local = local.replace("Mcp-Session-Id: …", f"Mcp-Session-Id: {session}")
        if self.printed:  # for `echo $?`
            local = f"(exit {self.printed[-1].status})\n{local}"
        kept = self.home.parent / "environ"
        process = self._start(f"{local}\nstatus=$?; env -0 > {kept}; exit $status")
        with ends_if_it_hangs(process):
            text, _ = process.communicate()
        variables = (line.partition("=") for line in kept.read_text().split("\0") if line)
        self.environ |= {name: value for name, _, value in variables if name not in {"_", "SHLVL"}}
        printed = Printed(command, self._globalise(text), process.returncode)
        self.printed.append(printed)
        return printed

    def _keep(self, command: str, text: str) -> Printed:
        self.printed.append(Printed(command, self._globalise(text), 0))
        return self.printed[-1]

    def serve(self, command: str = "trunkline serve --http 127.0.0.1:8080") -> str:
        """Start a gateway; wait until its servers are ready or failed; return what it printed."""
        self.stop_gateway()
        command = re.sub(r"(--http [\w.]+):\d+", r"\1:0", command)
        process = self._start(f"exec {command}", stderr=subprocess.PIPE)
        self.gateway = Gateway(process)
        found = self.gateway.wait_for(lambda line: line.startswith("MCP at "))
        self._origin = re.sub(r"/mcp$", "", found.split()[2])
        self.replaced[ADDRESS] = self._origin
        file = self.home / "trunkline.toml"
        tables: dict[str, Any] = tomllib.loads(file.read_text()) if file.exists() else {}
        self.gateway.wait_ready({*tables.get("servers", {})})
        return "".join(self.gateway.lines)

    def stop_gateway(self) -> None:
        if self.gateway is not None:
            self.gateway.end()
            self.gateway = None

    def call(self, key: str, tool: str, arguments: dict[str, str]) -> None:
        """Call a tool of the gateway in a session of its own; an error is an answer too."""
        client = {"name": "agent", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        headers = {"Authorization": f"Bearer {key}"}
        session, _ = self._post("initialize", hello, headers)
        headers["Mcp-Session-Id"] = str(session)
        self._post("notifications/initialized", {}, headers)
        self._post("tools/call", {"name": tool, "arguments": arguments}, headers)

    def _post(
        self, method: str, params: dict[str, Any], headers: dict[str, str]
    ) -> tuple[str | None, bytes]:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if not method.startswith("notifications/"):
            message["id"] = 1
        connection = HTTPConnection(urlsplit(self._origin).netloc, timeout=HANG_TIMEOUT)
        try:
            headers = {"Content-Type": "application/json", **headers}
            connection.request("POST", "/mcp", json.dumps(message), headers)
            response = connection.getresponse()
            return response.headers["Mcp-Session-Id"], response.read()
        finally:
            connection.close()

    def _follow(self, command: str, lines: int) -> str:
        process = self._start(f"exec {command}", stderr=subprocess.STDOUT)
        assert process.stdout is not None
        try:
            with ends_if_it_hangs(process):
                text = "".join(process.stdout.readline() for _ in range(lines))
                process.send_signal(signal.SIGINT)
                process.communicate()
        except AssertionError as error:
            # It shows what was done before, such as the call that should have been recorded.
            error.add_note("\n".join(f"$ {each.command}\n{each.text}" for each in self.printed))
            raise
        assert text.count("\n") == lines, text
        return text

    def _start(self, script: str, stderr: int | IO[str] = subprocess.STDOUT) -> Any:
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def _globalise(self, text: str) -> str:
        """Return what was printed, with the folders that the page names."""
        for theirs, ours in self.replaced.items():
            text = text.replace(ours, theirs) if ours else text
        return text
