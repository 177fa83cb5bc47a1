"""What callers used: from the audit log to the order of search results, through a whole gateway."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_application_http import MODERN, stateless_request
from tests.app.test_application_reload import AppHarness, running_over_http
from tests.cli.samples import fetch
from trunkline.audit.call_batch import records_in
from trunkline.audit.sqlite import SqliteStore
from trunkline.audit.store import all_rows

HTTP = "[http]\nlisten = '127.0.0.1:0'\n"
# Two servers with equal tools.
SERVERS = "[servers.a]\nbuiltin = 'operator'\n[servers.b]\nbuiltin = 'operator'\n"
SEARCH = "[servers.search]\nbuiltin = 'search'\n"
QUERY = "status of the gateway"


def tables(folder: Path, *more: str) -> tuple[str, ...]:
    return (f"[gateway]\nstate_dir = '{folder}'\n", HTTP, SERVERS, SEARCH, *more)


async def call(origin: str, name: str, **arguments: Any) -> Any:
    message = stateless_request("tools/call", name=name, arguments=arguments)
    headers = {"mcp-method": "tools/call", "mcp-name": name, **MODERN}
    answer = await fetch(f"{origin}/mcp", message, headers)
    return answer.result["structuredContent"]


async def search(origin: str) -> list[dict[str, Any]]:
    return (await call(origin, "search__find_tools", query=QUERY))["tools"]


@asynccontextmanager
async def serving(folder: Path, *more: str) -> AsyncGenerator[str]:
    """Serve, once the audit log of earlier gateways has been read."""
    has_log = (folder / "audit.db").exists()
    harness = AppHarness(folder, *tables(folder, *more))
    async with running_over_http(harness) as origin:
        if has_log and harness.app.usage is not None:
            harness.app.usage.read()
        yield origin


def recorded(folder: Path) -> list[dict[str, Any]]:
    store = SqliteStore(folder / "audit.db")
    store.open(create=False)
    try:
        records = [record for row in all_rows(store) for record in records_in(row)]
    finally:
        store.close()
    return [json.loads(record.body) for record in records if record.kind == "call"]


async def test_after_a_restart_a_tool_that_was_used_comes_before_its_equals(tmp_path: Path) -> None:
    async with serving(tmp_path) as origin:
        before = await search(origin)
        assert (before[0]["name"], before[0]["also"]) == ("a__status", ["b__status"])
        await call(origin, "b__status")
    async with serving(tmp_path) as origin:
        after = await search(origin)
    assert (after[0]["name"], after[0]["also"]) == ("b__status", ["a__status"])
    assert [tool["score"] for tool in after] == [tool["score"] for tool in before]
    searched, called, _ = recorded(tmp_path)
    assert {"a__status", "b__status"} <= set(searched["found"])
    assert len(set(searched["found"])) == len(searched["found"])
    assert searched["surface"] == ""
    assert "found" not in called


@pytest.mark.parametrize("off", ["rank_by_use = false\n", "[audit]\nurl = ''\n"])
async def test_without_the_setting_or_an_audit_log_use_has_no_effect(
    tmp_path: Path, off: str
) -> None:
    async with serving(tmp_path, off) as origin:
        before = await search(origin)
        await call(origin, "b__status")
    async with serving(tmp_path, off) as origin:
        assert await search(origin) == before
    has_log = off.startswith("rank_by_use")
    assert (tmp_path / "audit.db").exists() is has_log
    if has_log:
        records = recorded(tmp_path)
        assert len(records) == 3
        assert all("found" not in record for record in records)


async def test_a_reload_starts_and_stops_reading(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, *tables(tmp_path))
    async with running_over_http(harness):
        assert harness.app.usage is not None
        assert harness.app.usage.is_reading
        await harness.reload(*tables(tmp_path, "rank_by_use = false\n"))
        assert not harness.app.usage.is_reading
        await harness.reload(*tables(tmp_path))
        assert harness.app.usage.is_reading
    assert not harness.app.usage.is_reading


async def test_a_gateway_of_a_command_does_not_read(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, *tables(tmp_path))
    async with harness.app.running():
        assert harness.app.usage is not None
        assert not harness.app.usage.is_reading
