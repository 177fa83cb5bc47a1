"""The programs in examples/ do what their docstrings say."""

import re
import shlex
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "examples" / "client.py"
SERVER = ROOT / "examples" / "server.py"

CONVERSATION = """\
stock: {'apple': 3, 'pear': 0}
refused: Out of stock (1001): {"name":"pear","left":0}
pears: 2
"""


async def run(*arguments: str | Path) -> tuple[int | None, str, str]:
    child = await create_subprocess_exec(
        sys.executable, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    out, err = await child.communicate()
    return child.returncode, out.decode(), err.decode()


@asynccontextmanager
async def server_over_tcp() -> AsyncGenerator[str]:
    """Run the server and yield its address."""
    child: Process = await create_subprocess_exec(
        sys.executable, SERVER, "--tcp", "127.0.0.1:0", stderr=PIPE
    )
    assert child.stderr is not None
    try:
        line = (await child.stderr.readline()).decode()
        yield f"127.0.0.1:{line.split()[-1]}"
    finally:
        child.terminate()
        await child.communicate()


def commands() -> list[list[str]]:
    """Return the commands of the client's docstring, as arguments."""
    lines = re.findall(r"^python examples/client.py(.*)$", CLIENT.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_the_docstring_of_the_client_has_commands() -> None:
    assert len(commands()) == 3


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
async def test_each_command_of_the_docstring_works(arguments: list[str]) -> None:
    async with server_over_tcp() as address:
        given = [address if each == "127.0.0.1:8765" else each for each in arguments]
        status, out, err = await run(CLIENT, *given)
    expected: dict[tuple[str, ...], str] = {
        (): CONVERSATION,
        ("stock.take", '["apple", 2]'): "1\n",
        ("--tcp", "127.0.0.1:8765", "stock.list"): "{'apple': 3, 'pear': 0}\n",
    }
    assert (status, err) == (0, "")
    assert out == expected[tuple(arguments)]


async def test_the_conversation_also_works_over_tcp() -> None:
    async with server_over_tcp() as address:
        assert await run(CLIENT, "--tcp", address) == (0, CONVERSATION, "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["sum", "[1, 2]"], "RpcError: Method not found: sum (-32601)"),
        (["stock.take", "[1]"], "RpcError: Invalid params: expected `str`, got `int` - at `$[0]`"),
        (["stock.take", "pear"], "LocalProtocolError: expected a JSON value"),
        (["--tcp", "127.0.0.1:1"], "ConnectionRefusedError: "),
    ],
)
async def test_a_failure_is_one_line(arguments: list[str], reason: str) -> None:
    status, out, err = await run(CLIENT, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith(reason)
    assert len(err.splitlines()) == 1
