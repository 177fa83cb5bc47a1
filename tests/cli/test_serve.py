"""`trunkline serve`, as clients and as people start it."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.samples import BROKEN, OPERATOR, config
from trunkline import __version__
from trunkline.cli.serve import blocking_again, greeting
from trunkline.config import Config

SERVE = [sys.executable, "-m", "trunkline", "serve"]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRUNKLINE_CONFIG"}
    return kept | {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}


class Person:
    """Somebody at a terminal, who runs the program there and reads what it says."""

    def __init__(self, folder: Path) -> None:
        self.keyboard, far = pty.openpty()
        self.process = subprocess.Popen(
            SERVE, stdin=far, stdout=far, stderr=far, env=environment(folder), cwd=folder
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
