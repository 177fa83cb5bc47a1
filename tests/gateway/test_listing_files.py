"""Snapshots on disk: they survive a restart, and a bad file is ignored."""

import json
import logging
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tasks import HANG_TIMEOUT
from trunkline.gateway import listing_files as module
from trunkline.gateway.listing_files import LISTINGS_FOLDER, ListingFiles
from trunkline.gateway.stores import StoredListing
from trunkline.jsonrpc import Raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import Feature, FeatureKind

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
DEFINITION = Raw('{"name": "read",  "x": 1e400, "é": "\\u0041"}'.encode())
FEATURE = Feature(FeatureKind.TOOL, "read", DEFINITION, needs_task=True)
LISTING = StoredListing((FEATURE,), CacheHints(5, True), {"sampling": (FEATURE, FEATURE)})


@asynccontextmanager
async def written(folder: Path, **limits: Any) -> AsyncGenerator[ListingFiles]:
    """Yield a store, and write it at the end."""
    store = ListingFiles(folder, flush_timeout=HANG_TIMEOUT, **limits)
    yield store
    await store.aclose()


async def recalled(folder: Path, key: str = A) -> StoredListing | None:
    return await ListingFiles(folder).get(key)


def path_of(folder: Path, key: str = A) -> Path:
    return folder / LISTINGS_FOLDER / f"{key}.json"


async def test_a_listing_survives_a_restart_byte_for_byte(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert await recalled(folder) is None
    async with written(folder) as store:
        store.put(A, LISTING)
        assert await store.get(A) == LISTING  # before it is written
    found = await recalled(folder)
    assert found is not None
    assert found == LISTING
    assert bytes(found.features[0].definition) == bytes(DEFINITION)
    async with written(folder) as store:
        store.put(B, StoredListing())
        store.remove(A)
        assert await store.get(A) is None
    assert await recalled(folder) is None
    assert await recalled(folder, B) == StoredListing()


async def test_files_are_private(tmp_path: Path) -> None:
    async with written(tmp_path) as store:
        store.put(A, LISTING)
    assert stat.S_IMODE(path_of(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(path_of(tmp_path).parent.stat().st_mode) == 0o700
    assert [each.name for each in path_of(tmp_path).parent.iterdir()] == [f"{A}.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"key":7}',
        b"[" * 100_000,
        json.dumps({"key": A, "listing": {"features": [["tools"]]}}).encode(),
        json.dumps({"key": A, "listing": {"features": [["games", "x", {}]]}}).encode(),
        json.dumps({"key": A, "listing": {}, "format": 2}).encode(),
        json.dumps({"key": B, "listing": {}}).encode(),
    ],
)
async def test_an_invalid_file_is_ignored_with_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with written(tmp_path) as store:
        store.put(A, LISTING)
    path_of(tmp_path).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert await recalled(tmp_path) is None
    (record,) = caplog.records
    assert f"{A}.json is ignored: " in record.getMessage()
    async with written(tmp_path) as store:
        store.put(A, LISTING)
    assert await recalled(tmp_path) == LISTING


async def test_a_file_that_others_may_change_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with written(tmp_path) as store:
        store.put(A, LISTING)
    path_of(tmp_path).chmod(0o666)
    with caplog.at_level(logging.WARNING):
        assert await recalled(tmp_path) is None
    assert "chmod go-w" in caplog.text


async def test_the_oldest_files_above_the_limits_are_removed(tmp_path: Path) -> None:
    async with written(tmp_path, max_files=2) as store:
        for key in (A, B, C):
            store.put(key, LISTING)
    assert [await recalled(tmp_path, key) for key in (A, B, C)] == [None, LISTING, LISTING]
    foreign = path_of(tmp_path).with_name("notes.txt")
    foreign.write_text("mine")
    async with written(tmp_path, max_total_bytes=1) as store:
        store.put(A, LISTING)
    assert [await recalled(tmp_path, key) for key in (A, B, C)] == [None] * 3
    assert foreign.exists()


async def test_a_listing_that_is_too_large_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with written(tmp_path) as store:
        store.put(A, StoredListing())
    monkeypatch.setattr(module, "MAX_LISTING_BYTES", 100)
    async with written(tmp_path) as store:
        store.put(A, LISTING)
    assert "exceed the limit of 100" in caplog.text
    assert await recalled(tmp_path) is None


async def test_a_folder_that_cannot_be_written_costs_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / LISTINGS_FOLDER).write_text("a file")
    async with written(tmp_path) as store:
        store.put(A, LISTING)
        store.remove(B)
    assert "cannot be written" in caplog.text
