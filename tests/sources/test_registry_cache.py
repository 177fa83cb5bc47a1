"""The registry that is served: the last valid content of its file."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.sources.registries import PUBKEY, TREE, signed, tree, write
from tests.sources.test_registry_file import NEW, made
from tests.sources.test_signing import SIGNER
from tests.tasks import hang_guard
from trunkline.documents.errors import ConfigErrors
from trunkline.sources.registry_cache import RegistryCache
from trunkline.sources.registry_file import add_category, log_path, sign_registry


def new_cache(path: Path, pinned_key: str | None = None) -> RegistryCache:
    """Return a cache that checks the file every time."""
    return RegistryCache(path, pinned_key=pinned_key, check_interval=0.0)


async def version(cache: RegistryCache) -> str:
    return (await cache.current()).loaded.registry.version


def rewrite(path: Path, value: Any) -> None:
    """Rewrite a file with a new modification time, even if the clock is coarse."""
    old = path.stat().st_mtime_ns
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    os.utime(path, ns=(old + 1_000_000, old + 1_000_000))


async def test_without_a_file_the_embedded_registry_is_served() -> None:
    cache = RegistryCache()
    first = await cache.current()
    assert "rust-learning" in first.loaded.registry.categories
    assert await cache.current() is first
    assert first.log is None


async def test_a_changed_file_is_served_unless_it_is_invalid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.json", TREE)
    cache = new_cache(path)
    first = await cache.open()
    assert await cache.current() is first
    rewrite(path, tree(version="2.0.0"))
    assert await version(cache) == "2.0.0"
    with caplog.at_level(logging.WARNING):
        rewrite(path, "{")
        assert await version(cache) == "2.0.0"
        assert await version(cache) == "2.0.0"
    assert cache.is_outdated
    assert len(caplog.records) == 1
    assert "a.json:1:2: not JSON" in caplog.text
    rewrite(path, tree(version="3.0.0"))
    assert await version(cache) == "3.0.0"
    assert not cache.is_outdated
    path.unlink()
    assert await version(cache) == "3.0.0"
    assert cache.is_outdated


async def test_an_invalid_file_is_rejected_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"there is no such file; .*leave registry out"):
        await new_cache(tmp_path / "a.json").open()


async def test_the_file_is_checked_at_most_once_per_interval(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.json", TREE)
    cache = RegistryCache(path, check_interval=3600.0)
    await cache.open()
    rewrite(path, tree(version="2.0.0"))
    assert await version(cache) == "1.2.3"


async def test_no_caller_waits_while_another_checks_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.json", TREE)
    cache = new_cache(path)
    await cache.open()
    checking, go_on = asyncio.Event(), asyncio.Event()

    async def check() -> None:
        checking.set()
        await go_on.wait()

    monkeypatch.setattr(cache, "_reload_if_changed", check)
    async with hang_guard():
        first = asyncio.create_task(cache.current())
        await checking.wait()
        assert (await cache.current()).loaded.registry.version == "1.2.3"
        assert not first.done()
        go_on.set()
        await first


async def test_a_pinned_key_must_have_signed_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", signed(SIGNER))
    assert (await new_cache(path, pinned_key=SIGNER.pubkey).open()).loaded.is_signed
    with pytest.raises(ConfigErrors, match="not signed by the key that the configuration names"):
        await new_cache(path, pinned_key=PUBKEY).open()
    write(path, TREE)
    with pytest.raises(ConfigErrors, match="not signed by the key"):
        await new_cache(path, pinned_key=PUBKEY).open()


async def test_the_change_log_is_verified_and_its_problem_reported(tmp_path: Path) -> None:
    path = made(tmp_path / "a.json")
    sign_registry(path, SIGNER)
    cache = new_cache(path)
    log = (await cache.open()).log
    assert log is not None
    assert (log.entries, log.problem) == (41, None)
    add_category(path, "new", NEW)
    sign_registry(path, SIGNER)
    log = (await cache.current()).log
    assert log is not None
    assert log.entries == 46
    rewrite(log_path(path), log_path(path).read_text().replace("Rust", "Dust", 1))
    log = (await cache.current()).log
    assert log is not None
    assert "changed since" in str(log.problem)
    log_path(path).write_bytes(b"\xff")
    log = (await cache.current()).log
    assert log is not None
    assert log.problem == "cannot be read"
