"""A real PostgreSQL for tests: a separate server in a separate folder.

The programs are the system's. If it has none, `make test-outside` unpacks Debian's. The system's
databases are not touched. PostgreSQL refuses to run as root, so root starts it as another user.
"""

import asyncio
import os
import pwd
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path

from outside.program import HERE, START_SECONDS, free_port

UNPACKED = HERE / "postgresql"
"""Where `make test-outside` unpacks it."""

_PLACES = (Path("/usr/lib/postgresql"), UNPACKED / "usr" / "lib" / "postgresql")


def programs() -> Path:
    """Return the folder of its programs."""
    found = [
        path for place in _PLACES for path in place.glob("*/bin") if (path / "initdb").exists()
    ]
    assert found, "there is no PostgreSQL; `make test-outside` unpacks one"
    return max(found)


class Postgres:
    """A server that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql://tester:hunter2@127.0.0.1:{self.port}/postgres"
        self._process: Process | None = None
        self._output = ""
        """What it printed when it was started last."""
        self._user = pwd.getpwnam("nobody") if os.getuid() == 0 else None

    async def make(self) -> None:
        """Create a database cluster."""
        self.folder.mkdir()
        password = self.folder.parent / "password"
        password.write_text("hunter2")
        if self._user is not None:
            for path in (self.folder, password):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
            for parent in [p for p in self.folder.parents if p.owner() == "root"]:
                if parent != Path("/") and parent != Path("/tmp"):
                    parent.chmod(parent.stat().st_mode | 0o011)
        data = str(self.folder / "data")
        rest = ("--no-sync", "-A", "scram-sha-256", "--pwfile", str(password))
        made = await self._run("initdb", "-D", data, "-U", "tester", *rest)
        said, _ = await made.communicate()
        assert made.returncode == 0, said.decode()

    async def start(self) -> None:
        """Start it and wait until it accepts connections."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await self._start():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)  # processes of a killed server take a moment to end
        except TimeoutError:
            raise AssertionError(f"PostgreSQL does not start:\n{self._output}") from None

    async def _start(self) -> bool:
        place = ("-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder))
        self._process = await self._run("postgres", *place, "-h", "127.0.0.1", "-F")
        assert self._process.stdout is not None
        self._output = ""
        while line := await self._process.stdout.readline():
            self._output += line.decode(errors="replace")
            if b"ready to accept connections" in line:
                self._reading = asyncio.create_task(self._process.stdout.read())
                return True
        await self._process.wait()
        self._process = None
        return False

    async def kill(self) -> None:
        """Kill it and all of its processes, as a power cut would."""
        if self._process is not None:
            # Its processes have process groups of their own, and work in the folder of the data.
            for pid in (self._process.pid, *self._processes()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self._process.wait()
            await self._reading
            self._process = None

    def _processes(self) -> list[int]:
        """Return the processes of the server."""
        found: list[int] = []
        for place in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                if place.readlink() == (self.folder / "data").resolve():
                    found.append(int(place.parent.name))
        return found

    async def _run(self, program: str, *arguments: str) -> Process:
        return await asyncio.create_subprocess_exec(
            str(programs() / program),
            *arguments,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            cwd=self.folder,
            env={**os.environ, "LC_ALL": "C", "LD_LIBRARY_PATH": _libraries()},
            **(
                {}
                if self._user is None
                else {"user": self._user.pw_uid, "group": self._user.pw_gid}
            ),
        )


def _libraries() -> str:
    places = [str(path.parent) for path in UNPACKED.glob("usr/lib/*/*.so*")]
    return ":".join(dict.fromkeys(places))
