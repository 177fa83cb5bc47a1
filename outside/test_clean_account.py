"""A new user installs the packages, survives `kill -9`, upgrades and rolls back, by our manual."""

import json
import os
import signal
import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from outside.clean_account import (
    ROOT,
    Account,
    build_wheels,
    clean_account,
    previous_commit,
    read_commit,
    set_version,
    wait_ended,
)
from outside.program import Program, running
from tests.guides.manual import NOT_RUN
from tests.guides.reader import read_blocks, split_commands
from trunkline import __version__

pytestmark = pytest.mark.asyncio

OLD = "0.0.9"
BIN = 'export PATH="$HOME/.venvs/trunkline/bin:$PATH"\n'
STATE = Path(".local/state/trunkline")
CONFIG = """\
[http]
listen = "127.0.0.1:0"
[servers.time]
command = "python3"
args = ["stand_in.py", "mcp-server-time"]
protocol = "auto"
[auth]
mode = ["api_key"]
[roles.dev]
permissions = ["*"]
"""
GET_TIME = "time__get_current_time"
CALL = f"{BIN}TRUNKLINE_TOKEN=$(cat key) trunkline call {GET_TIME} --arg timezone=UTC"


@pytest.fixture
def account(tmp_path: Path) -> Generator[Account]:
    """A new user with the packages of the previous commit and of this one in a folder."""
    with clean_account() as made:
        dist = made.home / "dist"
        before = tmp_path / "before"
        read_commit(previous_commit(), before)
        set_version(before, OLD)
        build_wheels(before, dist)
        build_wheels(ROOT, dist)
        made.environ["PIP_FIND_LINKS"] = f"{dist} {made.environ.get('PIP_FIND_LINKS', '')}".strip()
        made.environ["PIP_CONSTRAINT"] = str(made.home / "constraints.txt")
        yield made


def page_commands(page: str, word: str) -> str:
    """Return the block of a page that has a word in it, as the user would paste it."""
    (block,) = [b for b in read_blocks(ROOT / "docs" / page) if word in b.text]
    commands = [each for each in split_commands(block.text) if ".venvs" in each]
    assert all(each in NOT_RUN for each in commands), "tests/guides runs it, too"
    return "\n".join(commands)


async def install(account: Account, version: str, commands: str) -> None:
    """Install a version with pip, whatever newer versions the registry has."""
    account.write("constraints.txt", f"trunkline=={version}\n")
    await account.run(commands.replace("==0.1.0", f"=={version}"))
    assert version in await account.run(f"{BIN}trunkline --version")


@asynccontextmanager
async def serving(account: Account) -> AsyncGenerator[Program]:
    """Run a gateway of the user; its server is ready."""
    program = str(account.home / ".venvs/trunkline/bin/trunkline")
    async with running(*account.command(program, "serve")) as gateway:
        await gateway.says('"event":"backend_ready".*"backend":"time"')
        yield gateway
        left = account.processes()
    await wait_ended(left)


async def count_calls(account: Account) -> int:
    query = f"{BIN}trunkline audit query --json --status success --tool {GET_TIME}"
    return len(json.loads(await account.run(query)))


async def use(account: Account, calls: int) -> None:
    """Call a tool of a running gateway; its record is number `calls`, and the key is known."""
    assert '"timezone": "UTC"' in await account.run(CALL)
    while await count_calls(account) < calls:
        pass  # records are written up to 0.1 s after the call
    killed = await account.run(CALL.replace(GET_TIME, "time__convert_time"), status=1)
    assert "Tool is disabled: time__convert_time" in killed
    assert "ci" in await account.run(f"{BIN}trunkline key list")


async def check_state(account: Account, calls: int) -> None:
    """Check what a gateway that does not run has left."""
    assert ", intact; " in await account.run(f"{BIN}trunkline audit verify")
    assert await count_calls(account) == calls
    assert account.processes() == []


def audit_version(account: Account) -> int:
    with closing(sqlite3.connect(account.home / STATE / "audit.db")) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


async def test_a_new_user_installs_survives_a_kill_upgrades_and_rolls_back(
    account: Account,
) -> None:
    await install(account, OLD, page_commands("start/install.md", "python3 -m venv"))
    assert '"state":"ready"' in await account.run(f"{BIN}trunkline call trunkline__status")
    account.write("trunkline.toml", CONFIG)
    account.write("stand_in.py", (ROOT / "tests/guides/stand_in.py").read_text())
    await account.run(f"{BIN}umask 077; trunkline key add ci --role dev > key")

    async with serving(account) as gateway:
        await account.run(f"{BIN}trunkline kill tool time__convert_time")
        await use(account, 1)
        started = account.processes()
        assert len(started) >= 2  # the gateway and its server
        os.kill(gateway.process.pid, signal.SIGKILL)
        await wait_ended(started)
        await check_state(account, 1)
    async with serving(account):
        await use(account, 2)
    eras = (account.home / STATE / "eras.json").read_bytes()
    version = audit_version(account)

    await install(account, __version__, page_commands("guides/upgrade.md", "--upgrade trunkline"))
    assert "keys: auth.api_keys.file" in await account.run(f"{BIN}trunkline check")
    await check_state(account, 2)
    async with serving(account) as gateway:
        await use(account, 3)
    assert "is ignored" not in "\n".join(gateway.lines)
    await check_state(account, 3)
    assert (account.home / STATE / "eras.json").read_bytes() == eras

    await install(account, OLD, page_commands("guides/upgrade.md", "trunkline==0.1.0"))
    if audit_version(account) != version:  # the older version must say so
        refused = await account.run(f"{BIN}trunkline serve", status=1)
        assert "a newer version of Trunkline writes it" in refused
        return
    await check_state(account, 3)
    async with serving(account):
        await use(account, 4)
    await check_state(account, 4)
    await account.run(page_commands("start/install.md", "rm -r ~/.venvs"))
    assert not (account.home / ".venvs/trunkline").exists()
