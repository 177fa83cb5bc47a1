"""The audit log in a real PostgreSQL: writing, querying, server failure and recovery."""

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
TIMEOUT = 60.0


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Postgres]:
    made = Postgres(tmp_path_factory.mktemp("postgres") / "server")
    await made.make()
    await made.start()
    try:
        yield made
    finally:
        await made.kill()


def make_config(postgres: Postgres, folder: Path) -> str:
    return f'[gateway]\nstate_dir = "{folder}"\n[audit]\nurl = "{postgres.url}"\n'


async def audit(folder: Path, *arguments: str) -> tuple[int, str, str]:
    config = folder / "trunkline.toml"
    return await run(sys.executable, "-m", "trunkline", "audit", *arguments, "--config", config)


async def calls(folder: Path) -> list[dict[str, Any]]:
    code, out, err = await audit(folder, "export", "--tool", "me__*")
    assert code == 0, err
    return [json.loads(line)["record"] for line in out.splitlines()]


async def wait_for_records(folder: Path, count: int) -> None:
    async with asyncio.timeout(TIMEOUT):
        while len(await calls(folder)) < count:
            pass


async def call(target: Gateway, times: int) -> None:
    async with client(target.mcp, "auto") as made:
        for _ in range(times):
            await made.call_tool("me__status", {})


async def test_calls_are_recorded_found_and_verified(postgres: Postgres, tmp_path: Path) -> None:
    async with gateway(tmp_path, SERVERS, make_config(postgres, tmp_path)) as one:
        for times in range(1, 7):  # calls that end together share a row
            await call(one, 5)
            await wait_for_records(tmp_path, 5 * times)
    code, out, err = await audit(tmp_path, "verify", "--json")
    assert code == 0, out + err
    assert json.loads(out)["ok"]
    assert "hunter2" not in out + err
    with psycopg.connect(postgres.url) as database:
        database.execute("UPDATE trunkline_audit.record SET subject = 'bob' WHERE seq = 3")
        database.execute("DELETE FROM trunkline_audit.record WHERE seq = 5")
    code, out, _ = await audit(tmp_path, "verify", "--json")
    found = [(each["kind"], each["first"]) for each in json.loads(out)["findings"]]
    assert (code, found) == (1, [("altered", 3), ("missing", 5)])
    with psycopg.connect(postgres.url) as database:
        database.execute("DROP SCHEMA trunkline_audit CASCADE")


async def test_two_gateways_extend_one_chain_and_recover_from_a_server_failure(
    postgres: Postgres, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with (
        gateway(here, SERVERS, make_config(postgres, here)) as one,
        gateway(there, SERVERS, make_config(postgres, there)) as two,
    ):
        await asyncio.gather(call(one, 30), call(two, 30))
        await wait_for_records(here, 60)
        await postgres.kill()
        await asyncio.gather(call(one, 30), call(two, 30))  # no call fails
        await one.program.says("cannot write the audit log: postgresql://tester@127")
        await postgres.start()
        await one.program.says("the audit log can be written again")
        await two.program.says("the audit log can be written again")
        await wait_for_records(here, 120)
    found = await calls(here)
    assert len({each["id"] for each in found}) == len(found) == 120
    assert len({each["gateway"] for each in found}) == 2
    for folder in (here, there):
        code, out, err = await audit(folder, "verify")
        assert code == 0, out + err


async def test_dropped_schema_is_noted_as_replaced(postgres: Postgres, tmp_path: Path) -> None:
    async with gateway(tmp_path, SERVERS, make_config(postgres, tmp_path)) as one:
        await call(one, 20)
        await wait_for_records(tmp_path, 20)
        with psycopg.connect(postgres.url) as database:
            database.execute("DROP SCHEMA trunkline_audit CASCADE")
        await call(one, 5)
        await one.program.says("the audit log can be written again")
        await wait_for_records(tmp_path, 5)
    code, out, _ = await audit(tmp_path, "verify", "--json")
    assert (code, [each["kind"] for each in json.loads(out)["findings"]]) == (1, ["replaced"])
    with psycopg.connect(postgres.url) as database:
        database.execute("DROP SCHEMA trunkline_audit CASCADE")


async def test_killed_gateway_is_recorded_by_the_next(postgres: Postgres, tmp_path: Path) -> None:
    async with gateway(tmp_path, SERVERS, make_config(postgres, tmp_path)) as one:
        await call(one, 5)
        before = len(await calls(tmp_path))
        await wait_for_records(tmp_path, before)
        await one.program.end(signal.SIGKILL)
    async with gateway(tmp_path, SERVERS, make_config(postgres, tmp_path)) as two:
        await call(two, 1)
        code, out, _ = await audit(tmp_path, "query", "--json", "--limit", "1000")
        lost: list[Any] = []
        async with asyncio.timeout(TIMEOUT):
            while not lost:
                code, out, _ = await audit(tmp_path, "query", "--json", "--limit", "1000")
                assert code == 0
                records = [each["record"] for each in json.loads(out)]
                lost = [each for each in records if each["kind"] == "lost"]
    assert lost[-1]["in_flight"] == 0
    code, out, err = await audit(tmp_path, "verify")
    assert code == 0, out + err


async def test_no_gateway_starts_with_the_log_of_a_newer_version(
    postgres: Postgres, tmp_path: Path
) -> None:
    async with gateway(tmp_path, SERVERS, make_config(postgres, tmp_path)) as one:
        await call(one, 1)
        await wait_for_records(tmp_path, 1)
    config = tmp_path / "trunkline.toml"
    serve = (sys.executable, "-m", "trunkline", "serve", "--http", "127.0.0.1:0")
    with psycopg.connect(postgres.url, autocommit=True) as database:
        (version,) = database.execute("SELECT version FROM trunkline_audit.chain").fetchone()
        newer = "UPDATE trunkline_audit.chain SET version = %s"
        database.execute(newer, (version + 1,))
        database.execute("DROP INDEX trunkline_audit.record_at")  # as a newer version might
        try:
            code, out, err = await run(*serve, "--config", config)
            assert database.execute(
                "SELECT to_regclass('trunkline_audit.record_at')"
            ).fetchone() == (None,)
        finally:
            database.execute(newer, (version,))
    assert (code, out) == (1, "")
    assert f"cannot serve: postgresql://tester@127.0.0.1:{postgres.port}/postgres: expected" in err
    assert "a newer version of Trunkline writes it" in err
