"""The protocols of servers in a file, which may be missing, invalid, or of another version."""

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks import HANG_TIMEOUT, hang_guard
from trunkline.backends import era_cache as module
from trunkline.backends.era_cache import (
    ERA_FILE,
    CachedEra,
    EraCache,
    EraFile,
    MemoryEraStore,
    cached_era,
    server_digest,
)
from trunkline.files import file_stamp
from trunkline.jsonrpc import Raw
from trunkline.mcp.versions import Era

OLD, NEW = CachedEra(Era.SESSION, "s", "1"), CachedEra(Era.STATELESS, "s", "2")
SERVER_INFO = Raw(b'{"name":"s","version":"1"}')
LATER_SERVER_INFO = Raw(b'{"name":"s","version":"2"}')

LOCK = f".{ERA_FILE}.lock"


@asynccontextmanager
async def kept(folder: Path, **limits: Any) -> AsyncGenerator[EraFile]:
    """Yield a store, and write it at the end."""
    store = EraFile(folder, flush_timeout=HANG_TIMEOUT, **limits)
    async with hang_guard():
        yield store
        await store.aclose()


async def recalled(folder: Path, key: str = "k") -> CachedEra | None:
    return await EraFile(folder).get(key)


@pytest.mark.holds("T108")
async def test_an_entry_survives_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    async with kept(folder) as store:
        assert await store.get("k") is None
        store.put("k", OLD)
        assert await store.get("k") == OLD
    assert await recalled(folder) == OLD
    async with kept(folder) as store:
        store.put("k", NEW)
        store.put("other", OLD)
    assert await recalled(folder) == NEW
    async with kept(folder) as store:
        await store.get("k")
        store.put("k", None)
    assert await recalled(folder) is None
    assert await recalled(folder, "other") == OLD


async def test_an_entry_set_before_the_file_was_read_is_kept(tmp_path: Path) -> None:
    async with kept(tmp_path) as store:
        store.put("a", OLD)
        store.put("b", OLD)
    async with kept(tmp_path) as store:
        store.put("b", NEW)
        assert await store.get("a") == OLD
        assert await store.get("b") == NEW


async def test_the_file_is_private_and_no_other_file_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    before = os.umask(0)
    try:
        async with kept(folder) as store:
            store.put("k", OLD)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {file.name for file in folder.iterdir()} == {ERA_FILE, LOCK}
    assert stat.S_IMODE((folder / ERA_FILE).stat().st_mode) == 0o600


async def test_an_unchanged_entry_is_not_written_again(tmp_path: Path) -> None:
    async with kept(tmp_path) as store:
        store.put("k", OLD)
    before = file_stamp(tmp_path / ERA_FILE)
    async with kept(tmp_path) as store:
        await store.get("k")
        store.put("k", OLD)
        store.put("nobody", None)
    assert file_stamp(tmp_path / ERA_FILE) == before


async def test_several_gateways_share_one_file(tmp_path: Path) -> None:
    async with kept(tmp_path) as one, kept(tmp_path) as other:
        await one.get("k")
        await other.get("k")
        one.put("one", OLD)
        await one.aclose()
        other.put("other", NEW)
    assert await recalled(tmp_path, "one") == OLD
    assert await recalled(tmp_path, "other") == NEW


async def test_gateways_that_write_at_once_keep_each_others_entries(tmp_path: Path) -> None:
    gateways = [EraFile(tmp_path, flush_timeout=HANG_TIMEOUT) for _ in range(8)]
    for number, each in enumerate(gateways):
        for key in range(5):
            each.put(f"{number}-{key}", OLD)
    async with hang_guard():
        await asyncio.gather(*(each.aclose() for each in gateways))
    found = json.loads((tmp_path / ERA_FILE).read_bytes())["servers"]
    assert set(found) == {f"{number}-{key}" for number in range(8) for key in range(5)}
    assert {file.name for file in tmp_path.iterdir()} == {ERA_FILE, LOCK}


async def test_an_entry_set_during_a_write_is_written_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, update = asyncio.get_running_loop(), vars(module)["_update_file"]
    first, go = asyncio.Event(), asyncio.Event()

    def slow(file: Path, changes: dict[str, CachedEra | None], limit: int) -> None:
        loop.call_soon_threadsafe(first.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        update(file, changes, limit)

    monkeypatch.setattr(module, "_update_file", slow)
    async with kept(tmp_path) as store:
        store.put("a", OLD)
        await first.wait()
        store.put("b", OLD)
        store.put("b", NEW)
        go.set()
    assert await recalled(tmp_path, "a") == OLD
    assert await recalled(tmp_path, "b") == NEW


async def test_closing_waits_no_longer_than_the_flush_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, go = asyncio.get_running_loop(), asyncio.Event()

    def stuck(file: Path, changes: dict[str, CachedEra | None], limit: int) -> None:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

    monkeypatch.setattr(module, "_update_file", stuck)
    store = EraFile(tmp_path, flush_timeout=0.02)
    store.put("a", OLD)
    async with hang_guard():
        await store.aclose()
        go.set()
        while asyncio.all_tasks() != {asyncio.current_task()}:
            await store.aclose()


async def test_the_number_of_entries_is_limited_in_memory_and_in_the_file(tmp_path: Path) -> None:
    async with kept(tmp_path, max_servers=3) as store:
        for key in "abc":
            store.put(key, OLD)
        store.put("a", NEW)  # learnt last
        store.put("d", OLD)
        assert await store.get("b") is None
    assert list(json.loads((tmp_path / ERA_FILE).read_bytes())["servers"]) == ["c", "a", "d"]
    smaller = EraFile(tmp_path, max_servers=1)
    assert await smaller.get("c") is None
    assert await smaller.get("d") == OLD


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"servers":[]}',
        b'{"servers":{"k":{}}}',
        b'{"servers":{"k":{"era":"sto\\n\\u001b[31mne"}}}',
        b'{"servers":{"k":{"era":"session","name":1}}}',
        b" " * (module.MAX_ERA_FILE_BYTES + 1),
    ],
)
async def test_an_invalid_file_is_ignored_with_one_log_line_and_replaced(
    garbage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ERA_FILE).write_bytes(garbage)
    async with kept(tmp_path) as store:
        assert await store.get("k") is None
        assert await store.get("k") is None
        (line,) = caplog.messages
        assert str(tmp_path / ERA_FILE) in line
        assert line.isprintable()
        store.put("k", OLD)
    assert await recalled(tmp_path) == OLD


async def test_members_of_newer_versions_are_accepted(tmp_path: Path) -> None:
    (tmp_path / ERA_FILE).write_text('{"v":2,"servers":{"k":{"era":"stateless","seen":1}}}')
    assert await recalled(tmp_path) == CachedEra(Era.STATELESS)


@pytest.mark.parametrize("obstacle", ["folder", "file"])
async def test_a_failed_write_is_logged_and_loses_nothing(
    obstacle: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    if obstacle == "folder":
        folder.write_text("in the way")
    else:
        (folder / ERA_FILE).mkdir(parents=True)
    async with kept(folder) as store:
        assert await store.get("k") is None
        store.put("k", OLD)
        assert await store.get("k") == OLD
    assert "cannot be written" in caplog.messages[-1]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    if obstacle == "file":
        assert {file.name for file in folder.iterdir()} == {ERA_FILE, LOCK}


async def test_entries_in_memory_are_set_replaced_removed_and_limited() -> None:
    store = MemoryEraStore(max_servers=2)
    assert await store.get("k") is None
    for era in (OLD, NEW, None):
        store.put("k", era)
        assert await store.get("k") == era
    for key in "abc":
        store.put(key, OLD)
    assert [await store.get(key) for key in "abc"] == [None, OLD, OLD]


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_different_servers_have_different_keys_without_secrets(
    one: list[str], other: list[str]
) -> None:
    assert (server_digest(*one) == server_digest(*other)) == (one == other)
    assert len(server_digest(*one)) == 64


@pytest.mark.parametrize(
    ("server_info", "name", "version"),
    [
        (b'{"name":"a","version":"1","title":"A"}', "a", "1"),
        (b'{"name":7}', "7", ""),
        (b"[1]", "", ""),
        (b"nonsense", "", ""),
        (b'{"name":"' + b"x" * 999 + b'"}', "x" * module.MAX_NAME_CHARS, ""),
    ],
)
def test_a_servers_name_and_version_are_truncated(
    server_info: bytes, name: str, version: str
) -> None:
    assert cached_era(Era.SESSION, Raw(server_info)) == CachedEra(Era.SESSION, name, version)


# One server


async def test_a_conclusive_protocol_is_remembered_and_written(tmp_path: Path) -> None:
    async with kept(tmp_path) as store:
        memory = EraCache(store, "k")
        assert await memory.get() is None
        memory.record(Era.SESSION, SERVER_INFO, conclusive=True)
        assert await memory.get() is Era.SESSION
        memory.record(Era.SESSION, SERVER_INFO, conclusive=False)  # as it was remembered
    async with kept(tmp_path) as store:
        assert await EraCache(store, "k").get() is Era.SESSION
        assert await EraCache(store, "other").get() is None


async def test_a_protocol_detected_by_timeout_is_never_written(tmp_path: Path) -> None:
    async with kept(tmp_path) as store:
        memory = EraCache(store, "k")
        await memory.get()
        memory.record(Era.SESSION, SERVER_INFO, conclusive=False)
        assert await memory.get() is Era.SESSION
    assert not (tmp_path / ERA_FILE).exists()


@pytest.mark.holds("T108")
@pytest.mark.parametrize(
    ("era", "server_info"), [(Era.SESSION, LATER_SERVER_INFO), (Era.STATELESS, SERVER_INFO)]
)
async def test_an_entry_of_another_version_is_forgotten(
    era: Era, server_info: Raw, tmp_path: Path
) -> None:
    async with kept(tmp_path) as store:
        EraCache(store, "k").record(Era.SESSION, SERVER_INFO, conclusive=True)
    async with kept(tmp_path) as store:
        memory = EraCache(store, "k")
        assert await memory.get() is Era.SESSION
        memory.record(era, server_info, conclusive=False)
        assert await memory.get() is None
    assert await recalled(tmp_path) is None


async def test_an_invalidated_era_is_in_memory_until_the_next_detection(
    tmp_path: Path,
) -> None:
    async with kept(tmp_path) as store:
        memory = EraCache(store, "k")
        memory.record(Era.SESSION, SERVER_INFO, conclusive=True)
        memory.invalidate()
        assert await memory.get() is None
    assert await recalled(tmp_path) == OLD
    memory = EraCache()
    memory.invalidate()
    memory.record(Era.STATELESS, SERVER_INFO, conclusive=True)
    assert await memory.get() is Era.STATELESS
