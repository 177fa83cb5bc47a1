"""The registry that is served: fresh when its file is good, and otherwise the one before."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.sources.registries import PUBKEY, TREE, signed, tree, write
from tests.sources.test_edit import NEW, made
from tests.sources.test_keys import SIGNER
from trunkline.documents.errors import ConfigErrors
from trunkline.sources import shelf as module
from trunkline.sources.edit import add_category, log_path, sign_file
from trunkline.sources.shelf import Shelf


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the file every time."""
    monkeypatch.setattr(module, "LOOK_AGAIN", 0.0)


async def version(shelf: Shelf) -> str:
    return (await shelf.fresh()).loaded.registry.version


def rewrite(path: Path, value: Any) -> None:
    """Write a file anew, at another time than before, however coarse the clock of the disk is."""
    old = path.stat().st_mtime_ns
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    os.utime(path, ns=(old + 1_000_000, old + 1_000_000))


async def test_without_a_file_it_is_the_embedded_one() -> None:
    shelf = Shelf()
    first = await shelf.fresh()
    assert "rust-learning" in first.loaded.registry.categories
    assert await shelf.fresh() is first
    assert first.log is None


async def test_a_changed_file_is_served_and_a_bad_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.json", TREE)
    shelf = Shelf(path)
    first = await shelf.open()
    assert await shelf.fresh() is first
    rewrite(path, tree(version="2.0.0"))
    assert await version(shelf) == "2.0.0"
    with caplog.at_level(logging.WARNING):
        rewrite(path, "{")
        assert await version(shelf) == "2.0.0"
        assert await version(shelf) == "2.0.0"
    assert shelf.is_behind
    assert len(caplog.records) == 1
    assert "a.json:1:2: not JSON" in caplog.text
    rewrite(path, tree(version="3.0.0"))
    assert await version(shelf) == "3.0.0"
    assert not shelf.is_behind
    path.unlink()
    assert await version(shelf) == "3.0.0"
    assert shelf.is_behind


async def test_a_bad_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"there is no such file; .*leave registry out"):
        await Shelf(tmp_path / "a.json").open()


async def test_the_file_is_looked_at_no_more_than_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN", 3600.0)
    path = write(tmp_path / "a.json", TREE)
    shelf = Shelf(path)
    await shelf.open()
    rewrite(path, tree(version="2.0.0"))
    assert await version(shelf) == "1.2.3"


async def test_nobody_waits_while_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.json", TREE)
    shelf = Shelf(path)
    await shelf.open()
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def look() -> None:
        looking.set()
        await go_on.wait()

    monkeypatch.setattr(shelf, "_look", look)
    async with asyncio.timeout(5):
        first = asyncio.create_task(shelf.fresh())
        await looking.wait()
        assert (await shelf.fresh()).loaded.registry.version == "1.2.3"
        assert not first.done()
        go_on.set()
        await first


async def test_a_pinned_key_must_have_signed_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", signed(SIGNER))
    assert (await Shelf(path, pinned=SIGNER.pubkey).open()).loaded.is_signed
    with pytest.raises(ConfigErrors, match="not signed by the key that the configuration names"):
        await Shelf(path, pinned=PUBKEY).open()
    write(path, TREE)
    with pytest.raises(ConfigErrors, match="not signed by the key"):
        await Shelf(path, pinned=PUBKEY).open()


async def test_a_log_is_walked_and_what_is_wrong_with_it_is_known(tmp_path: Path) -> None:
    path = made(tmp_path / "a.json")
    sign_file(path, SIGNER)
    shelf = Shelf(path)
    log = (await shelf.open()).log
    assert log is not None
    assert (log.entries, log.problem) == (41, None)
    add_category(path, "new", NEW)
    sign_file(path, SIGNER)
    log = (await shelf.fresh()).log
    assert log is not None
    assert log.entries == 46
    rewrite(log_path(path), log_path(path).read_text().replace("Rust", "Dust", 1))
    log = (await shelf.fresh()).log
    assert log is not None
    assert "changed since" in str(log.problem)
    log_path(path).write_bytes(b"\xff")
    log = (await shelf.fresh()).log
    assert log is not None
    assert log.problem == "cannot be read"
