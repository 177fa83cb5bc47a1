"""A user account of its own for a test, with an empty home; and packages for it to install.

Invariants:
1. The account has a new uid, no groups of others, and none of our variables but those of pip.
2. The account, its home and its processes are gone at the end.
"""

import asyncio
import io
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from outside.program import HERE

ROOT = HERE.parent
BUILDER = ROOT / ".venv-release" / "bin" / "python"
INSTALL_SECONDS = 300.0
END_SECONDS = 60.0

_KEPT = ("PIP_", "SSL_", "REQUESTS_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_VERSION = re.compile(r'(?<=__version__ = ")[^"]+')


class Account:
    """A user who runs commands in their home."""

    def __init__(self, name: str) -> None:
        found = pwd.getpwnam(name)
        self.uid, self.gid, self.home = found.pw_uid, found.pw_gid, Path(found.pw_dir)
        self.environ = {k: v for k, v in os.environ.items() if k.upper().startswith(_KEPT)} | {
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": f"{Path(sys._base_executable).parent}:/usr/local/bin:/usr/bin:/bin",
        }

    def command(self, *words: str) -> list[str]:
        """Return a command of ours that runs another one as this user, in its home."""
        who = ("--reuid", str(self.uid), "--regid", str(self.gid), "--clear-groups")
        variables = [f"{name}={value}" for name, value in self.environ.items()]
        where = ("env", "-i", "--chdir", str(self.home), *variables)
        return ["setpriv", *who, *where, *words]

    async def run(self, script: str, status: int = 0) -> str:
        """Run shell commands; return what they printed."""
        done = await asyncio.to_thread(
            subprocess.run,
            self.command("bash", "-ec", script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
        assert done.returncode == status, f"{script}\n{done.stdout}"
        return done.stdout

    def write(self, name: str, content: str) -> None:
        """Write a file of the user."""
        file = self.home / name
        file.write_text(content, encoding="utf-8")
        os.chown(file, self.uid, self.gid)
        file.chmod(0o600)

    def processes(self) -> list[int]:
        """Return the processes of the user that have not ended."""
        found: list[int] = []
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                text = status.read_text()
                uids = re.search(r"^Uid:\s+(.*)$", text, re.MULTILINE)
                has_ended = re.search(r"^State:\s+[ZX]", text, re.MULTILINE)
                if uids and str(self.uid) in uids[1].split() and not has_ended:
                    found.append(int(status.parent.name))
        return found

    def kill_all(self) -> None:
        """Kill the processes of the user."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def clean_account() -> Generator[Account]:
    """Create an account; remove it at the end."""
    assert os.getuid() == 0, "only root can create an account"
    name = f"trunkline-{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="trunkline-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        made = ("--create-home", "--home-dir", str(folder / "home"), "--user-group")
        subprocess.run(["useradd", *made, name], check=True)
        account = Account(name)
        try:
            yield account
        finally:
            account.kill_all()
            subprocess.run(["userdel", name], check=True)
    finally:
        shutil.rmtree(folder)


async def wait_ended(pids: list[int]) -> None:
    """Wait until processes, also those of others, have ended."""
    for pid in pids:
        try:
            found = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, *_ = await asyncio.to_thread(select.select, [found], [], [], END_SECONDS)
        os.close(found)
        assert ended, f"process {pid} has not ended"


def previous_commit() -> str:
    """Return the commit before this one; in a clone of one commit only, this one."""
    listed = _git("rev-list", "--first-parent", "--max-count=2", "HEAD").decode().split()
    return listed[-1]


def read_commit(commit: str, target: Path) -> None:
    """Write the files of a commit that its packages are built from."""
    wanted = ("src", "packaging", "pyproject.toml", "README.md", "LICENSE")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, *wanted))) as archive:
        archive.extractall(target, filter="data")


def set_version(source: Path, version: str) -> None:
    """Give a source another version, so that pip sees an upgrade from it."""
    file = source / "src/trunkline/__init__.py"
    text = file.read_text()
    (old,) = _VERSION.findall(text)
    file.write_text(_VERSION.sub(version, text))
    users = source / "packaging/trunkline/pyproject.toml"
    users.write_text(users.read_text().replace(old, version))


def build_wheels(source: Path, target: Path) -> None:
    """Build both packages of a source."""
    for project in (source, source / "packaging/trunkline"):
        command = (BUILDER, "-m", "hatchling", "build", "-t", "wheel", "-d", target)
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def _git(*arguments: str) -> bytes:
    # The checkout may belong to another user than root.
    command = ("git", "-c", f"safe.directory={ROOT}", *arguments)
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
