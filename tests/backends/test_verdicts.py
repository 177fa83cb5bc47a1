"""What is remembered of servers: in a file that may be missing, garbage, or somebody else's."""

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.backends import verdicts as module
from trunkline.backends.verdicts import FILE, Known, Memory, Verdicts, digest, known
from trunkline.files import stamp_of
from trunkline.jsonrpc import Raw
from trunkline.mcp.versions import Era

OLD, NEW = Known(Era.HANDSHAKE, "s", "1"), Known(Era.ENVELOPE, "s", "2")
SAID = Raw(b'{"name":"s","version":"1"}')
SAID_LATER = Raw(b'{"name":"s","version":"2"}')

LOCK = f".{FILE}.lock"


@asynccontextmanager
async def kept(folder: Path | None) -> AsyncGenerator[Verdicts]:
    """Remember things until the end, and then for longer."""
    verdicts = Verdicts(folder)
    async with asyncio.timeout(20):
        yield verdicts
        await verdicts.aclose()


async def recalled(folder: Path, key: str = "k") -> Known | None:
    return await Verdicts(folder).recall(key)


@pytest.mark.holds("T108")
async def test_what_is_remembered_is_there_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    async with kept(folder) as verdicts:
        assert await verdicts.recall("k") is None
        verdicts.remember("k", OLD)
        assert await verdicts.recall("k") == OLD
    assert await recalled(folder) == OLD
    async with kept(folder) as verdicts:
        verdicts.remember("k", NEW)
        verdicts.remember("other", OLD)
    assert await recalled(folder) == NEW
    async with kept(folder) as verdicts:
        await verdicts.recall("k")
        verdicts.remember("k", None)
    assert await recalled(folder) is None
    assert await recalled(folder, "other") == OLD


async def test_what_was_learnt_before_it_was_read_is_not_lost(tmp_path: Path) -> None:
    async with kept(tmp_path) as verdicts:
        verdicts.remember("a", OLD)
        verdicts.remember("b", OLD)
    async with kept(tmp_path) as verdicts:
        verdicts.remember("b", NEW)
        assert await verdicts.recall("a") == OLD
        assert await verdicts.recall("b") == NEW


async def test_it_is_for_its_owner_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    before = os.umask(0)
    try:
        async with kept(folder) as verdicts:
            verdicts.remember("k", OLD)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {file.name for file in folder.iterdir()} == {FILE, LOCK}
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600


async def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    async with kept(tmp_path) as verdicts:
        verdicts.remember("k", OLD)
    before = stamp_of(tmp_path / FILE)
    async with kept(tmp_path) as verdicts:
        await verdicts.recall("k")
        verdicts.remember("k", OLD)
        verdicts.remember("nobody", None)
    assert stamp_of(tmp_path / FILE) == before


async def test_several_gateways_remember_into_one_file(tmp_path: Path) -> None:
    async with kept(tmp_path) as one, kept(tmp_path) as other:
        await one.recall("k")
        await other.recall("k")
        one.remember("one", OLD)
        await one.aclose()
        other.remember("other", NEW)
    assert await recalled(tmp_path, "one") == OLD
    assert await recalled(tmp_path, "other") == NEW


async def test_gateways_that_write_at_once_lose_nothing_of_each_others(tmp_path: Path) -> None:
    gateways = [Verdicts(tmp_path) for _ in range(8)]
    for number, each in enumerate(gateways):
        for key in range(5):
            each.remember(f"{number}-{key}", OLD)
    async with asyncio.timeout(20):
        await asyncio.gather(*(each.aclose() for each in gateways))
    found = json.loads((tmp_path / FILE).read_bytes())["servers"]
    assert set(found) == {f"{number}-{key}" for number in range(8) for key in range(5)}
    assert {file.name for file in tmp_path.iterdir()} == {FILE, LOCK}


async def test_what_is_learnt_while_it_writes_is_written_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, update = asyncio.get_running_loop(), vars(module)["_update"]
    first, go = asyncio.Event(), asyncio.Event()

    def slow(file: Path, news: dict[str, Known | None]) -> None:
        loop.call_soon_threadsafe(first.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        update(file, news)

    monkeypatch.setattr(module, "_update", slow)
    async with kept(tmp_path) as verdicts:
        verdicts.remember("a", OLD)
        await first.wait()
        verdicts.remember("b", OLD)
        verdicts.remember("b", NEW)
        go.set()
    assert await recalled(tmp_path, "a") == OLD
    assert await recalled(tmp_path, "b") == NEW


async def test_the_end_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, go = asyncio.get_running_loop(), asyncio.Event()

    def stuck(file: Path, news: dict[str, Known | None]) -> None:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

    monkeypatch.setattr(module, "_update", stuck)
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    verdicts = Verdicts(tmp_path)
    verdicts.remember("a", OLD)
    async with asyncio.timeout(10):
        await verdicts.aclose()
        go.set()
        monkeypatch.setattr(module, "PATIENCE", 10.0)
        await verdicts.aclose()


async def test_there_are_never_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VERDICTS", 3)
    async with kept(tmp_path) as verdicts:
        for key in "abc":
            verdicts.remember(key, OLD)
        verdicts.remember("a", NEW)  # learnt last
        verdicts.remember("d", OLD)
        assert await verdicts.recall("b") is None
    assert list(json.loads((tmp_path / FILE).read_bytes())["servers"]) == ["c", "a", "d"]
    monkeypatch.setattr(module, "MAX_VERDICTS", 1)
    assert await recalled(tmp_path, "c") is None
    assert await recalled(tmp_path, "d") == OLD


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
        b'{"servers":{"k":{"era":"handshake","name":1}}}',
        b" " * (module.MAX_FILE + 1),
    ],
)
async def test_garbage_is_ignored_with_one_line_and_replaced(
    garbage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(garbage)
    async with kept(tmp_path) as verdicts:
        assert await verdicts.recall("k") is None
        assert await verdicts.recall("k") is None
        (line,) = caplog.messages
        assert str(tmp_path / FILE) in line
        assert line.isprintable()
        verdicts.remember("k", OLD)
    assert await recalled(tmp_path) == OLD


async def test_what_newer_versions_of_us_add_is_no_garbage(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"v":2,"servers":{"k":{"era":"envelope","seen":1}}}')
    assert await recalled(tmp_path) == Known(Era.ENVELOPE)


@pytest.mark.parametrize("obstacle", ["folder", "file"])
async def test_what_cannot_be_written_is_said_and_nothing_is_lost(
    obstacle: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    if obstacle == "folder":
        folder.write_text("in the way")
    else:
        (folder / FILE).mkdir(parents=True)
    async with kept(folder) as verdicts:
        assert await verdicts.recall("k") is None
        verdicts.remember("k", OLD)
        assert await verdicts.recall("k") == OLD
    assert "cannot be written" in caplog.messages[-1]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    if obstacle == "file":
        assert {file.name for file in folder.iterdir()} == {FILE, LOCK}


async def test_without_a_folder_it_lasts_as_long_as_it_does() -> None:
    async with kept(None) as verdicts:
        assert await verdicts.recall("k") is None
        verdicts.remember("k", OLD)
        assert await verdicts.recall("k") == OLD


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_servers_that_differ_are_told_apart_and_no_secret_is_kept(
    one: list[str], other: list[str]
) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)
    assert len(digest(*one)) == 64


@pytest.mark.parametrize(
    ("said", "name", "version"),
    [
        (b'{"name":"a","version":"1","title":"A"}', "a", "1"),
        (b'{"name":7}', "7", ""),
        (b"[1]", "", ""),
        (b"nonsense", "", ""),
        (b'{"name":"' + b"x" * 999 + b'"}', "x" * module.MAX_NAME, ""),
    ],
)
def test_what_a_server_calls_itself_is_kept_within_bounds(
    said: bytes, name: str, version: str
) -> None:
    assert known(Era.HANDSHAKE, Raw(said)) == Known(Era.HANDSHAKE, name, version)


# One server


async def test_a_conclusion_is_remembered_and_written(tmp_path: Path) -> None:
    async with kept(tmp_path) as verdicts:
        memory = Memory(verdicts, "k")
        assert await memory.recall() is None
        memory.learn(Era.HANDSHAKE, SAID, conclusive=True)
        assert await memory.recall() is Era.HANDSHAKE
        memory.learn(Era.HANDSHAKE, SAID, conclusive=False)  # as it was remembered
    async with kept(tmp_path) as verdicts:
        assert await Memory(verdicts, "k").recall() is Era.HANDSHAKE
        assert await Memory(verdicts, "other").recall() is None


async def test_silence_is_remembered_but_never_written(tmp_path: Path) -> None:
    async with kept(tmp_path) as verdicts:
        memory = Memory(verdicts, "k")
        await memory.recall()
        memory.learn(Era.HANDSHAKE, SAID, conclusive=False)
        assert await memory.recall() is Era.HANDSHAKE
    assert not (tmp_path / FILE).exists()


@pytest.mark.holds("T108")
@pytest.mark.parametrize(("era", "said"), [(Era.HANDSHAKE, SAID_LATER), (Era.ENVELOPE, SAID)])
async def test_what_was_found_of_another_version_is_forgotten(
    era: Era, said: Raw, tmp_path: Path
) -> None:
    async with kept(tmp_path) as verdicts:
        Memory(verdicts, "k").learn(Era.HANDSHAKE, SAID, conclusive=True)
    async with kept(tmp_path) as verdicts:
        memory = Memory(verdicts, "k")
        assert await memory.recall() is Era.HANDSHAKE
        memory.learn(era, said, conclusive=False)
        assert await memory.recall() is None
    assert await recalled(tmp_path) is None


async def test_a_doubt_lasts_until_the_next_conclusion_and_is_nothing_to_write(
    tmp_path: Path,
) -> None:
    async with kept(tmp_path) as verdicts:
        memory = Memory(verdicts, "k")
        memory.learn(Era.HANDSHAKE, SAID, conclusive=True)
        memory.doubt()
        assert await memory.recall() is None
    assert await recalled(tmp_path) == OLD
    memory = Memory()
    memory.doubt()
    memory.learn(Era.ENVELOPE, SAID, conclusive=True)
    assert await memory.recall() is Era.ENVELOPE
