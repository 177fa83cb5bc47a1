"""The journal in a real PostgreSQL: written, asked, killed in the midst of it, and healed."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from outside.clients import client
from outside.gateway import Gateway, gateway
from outside.postgresql import Postgres
from outside.program import run

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

SERVERS = {"me": {"builtin": "operator"}}
PATIENCE = 60.0


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Postgres]:
    made = Postgres(tmp_path_factory.mktemp("postgres") / "server")
    await made.make()
    await made.start()
    try:
        yield made
    finally:
        await made.kill()


def head(postgres: Postgres, folder: Path) -> str:
    return f'[gateway]\nstate = "{folder}"\n[journal]\nurl = "{postgres.url}"\n'


async def audit(folder: Path, *arguments: str) -> tuple[int, str, str]:
    config = folder / "trunkline.toml"
    return await run(sys.executable, "-m", "trunkline", "audit", *arguments, "--config", config)


async def calls(folder: Path) -> list[dict[str, Any]]:
    code, out, err = await audit(folder, "export", "--tool", "me__*")
    assert code == 0, err
    return [json.loads(line)["record"] for line in out.splitlines()]


async def until(folder: Path, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(await calls(folder)) < count:
            pass


async def call(place: Gateway, times: int) -> None:
    async with client(place.mcp, "auto") as made:
        for _ in range(times):
            await made.call_tool("me__status", {})


async def test_calls_are_recorded_found_and_verified(postgres: Postgres, tmp_path: Path) -> None:
    async with gateway(tmp_path, SERVERS, head(postgres, tmp_path)) as one:
        for times in range(1, 7):  # what ended at about the same time is one row
            await call(one, 5)
            await until(tmp_path, 5 * times)
    code, out, err = await audit(tmp_path, "verify", "--json")
    assert code == 0, out + err
    assert json.loads(out)["ok"]
    assert "hunter2" not in out + err
    with psycopg.connect(postgres.url) as database:
        database.execute("UPDATE trunkline_journal.record SET subject = 'bob' WHERE seq = 3")
        database.execute("DELETE FROM trunkline_journal.record WHERE seq = 5")
    code, out, _ = await audit(tmp_path, "verify", "--json")
    found = [(each["what"], each["first"]) for each in json.loads(out)["findings"]]
    assert (code, found) == (1, [("altered", 3), ("missing", 5)])
    with psycopg.connect(postgres.url) as database:
        database.execute("DROP SCHEMA trunkline_journal CASCADE")


async def test_two_gateways_write_one_chain_and_a_lost_server_is_healed(
    postgres: Postgres, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with (
        gateway(here, SERVERS, head(postgres, here)) as one,
        gateway(there, SERVERS, head(postgres, there)) as two,
    ):
        await asyncio.gather(call(one, 30), call(two, 30))
        await until(here, 60)
        await postgres.kill()
        await asyncio.gather(call(one, 30), call(two, 30))  # nobody is stopped by it
        await one.program.says("the journal cannot be written: postgresql://tester@127")
        await postgres.start()
        await one.program.says("the journal can be written again")
        await two.program.says("the journal can be written again")
        await until(here, 120)
    found = await calls(here)
    assert len({each["id"] for each in found}) == len(found) == 120
    assert len({each["gateway"] for each in found}) == 2
    for folder in (here, there):
        code, out, err = await audit(folder, "verify")
        assert code == 0, out + err


async def test_a_journal_that_is_dropped_under_a_gateway_is_missed(
    postgres: Postgres, tmp_path: Path
) -> None:
    async with gateway(tmp_path, SERVERS, head(postgres, tmp_path)) as one:
        await call(one, 20)
        await until(tmp_path, 20)
        with psycopg.connect(postgres.url) as database:
            database.execute("DROP SCHEMA trunkline_journal CASCADE")
        await call(one, 5)
        await one.program.says("the journal can be written again")
        await until(tmp_path, 5)
    code, out, _ = await audit(tmp_path, "verify", "--json")
    assert (code, [each["what"] for each in json.loads(out)["findings"]]) == (1, ["replaced"])
    with psycopg.connect(postgres.url) as database:
        database.execute("DROP SCHEMA trunkline_journal CASCADE")


async def test_one_that_is_killed_is_known_by_the_next(postgres: Postgres, tmp_path: Path) -> None:
    async with gateway(tmp_path, SERVERS, head(postgres, tmp_path)) as one:
        await call(one, 5)
        before = len(await calls(tmp_path))
        await until(tmp_path, before)
        await one.program.end(signal.SIGKILL)
    async with gateway(tmp_path, SERVERS, head(postgres, tmp_path)) as two:
        await call(two, 1)
        code, out, _ = await audit(tmp_path, "query", "--json", "--limit", "1000")
        lost: list[Any] = []
        async with asyncio.timeout(PATIENCE):
            while not lost:
                code, out, _ = await audit(tmp_path, "query", "--json", "--limit", "1000")
                assert code == 0
                records = [each["record"] for each in json.loads(out)]
                lost = [each for each in records if each["kind"] == "lost"]
    assert lost[-1]["in_flight"] == 0
    code, out, err = await audit(tmp_path, "verify")
    assert code == 0, out + err
