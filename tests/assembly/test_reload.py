"""Reloading: what is bad changes nothing, what is good changes everything, and nothing twice."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trunkline.assembly import reload
from trunkline.assembly.reload import Apply, Change, Outcome, Reloader
from trunkline.config import Config, ConfigError, ConfigErrors, load
from trunkline.jsonrpc import Incident

NAMED = '[gateway]\nname = "{}"\n'
CHILD = '[servers.a]\ncommand = "x"\nenv_file = "a.env"\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAUSE", "QUIET", "AGAIN"):
        monkeypatch.setattr(reload, name, 0.001)


class Part:
    """Remembers the names that it was to be called."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.applied: list[str] = []
        self.failure: Exception | None = None

    def prepare(self, change: Change) -> Apply:
        if self.failure is not None:
            raise self.failure
        self.prepared.append(change.new.gateway.name)
        return lambda: self.applied.append(change.new.gateway.name)

    async def prepare_later(self, change: Change) -> Apply:
        await asyncio.sleep(0)
        return self.prepare(change)


class Desk:
    """A reloader over a file, with two parts."""

    def __init__(self, folder: Path, text: str = NAMED.format("first")) -> None:
        self.file = folder / "some.toml"
        self.file.write_text(text)
        self.told: list[Outcome] = []
        self.incidents: list[Incident] = []
        self.heard = asyncio.Event()
        self.environ = {"HOME": str(folder)}
        config = load(self.file, self.environ)
        self.reloader = Reloader(config, self.environ, self.tell, self.incidents.append)
        self.first, self.second = Part(), Part()
        self.reloader.add(self.first.prepare)
        self.reloader.add(self.second.prepare_later)

    def tell(self, outcome: Outcome) -> None:
        self.hear(outcome)

    def hear(self, outcome: Outcome) -> None:
        self.told.append(outcome)
        self.heard.set()

    async def next(self) -> Outcome:
        async with asyncio.timeout(10):
            await self.heard.wait()
        self.heard.clear()
        return self.told[-1]

    def write(self, text: str) -> None:
        """Write as careful people do: all of it at once."""
        other = self.file.with_suffix(".new")
        other.write_text(text)
        other.replace(self.file)


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class Watching:
    """Runs a reloader for as long as the context lasts."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def __aenter__(self) -> Desk:
        await self.desk.reloader.begin()
        self.task = asyncio.create_task(self.desk.reloader.run())
        return self.desk

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert self.desk.incidents == []


async def test_what_is_good_is_prepared_by_all_and_then_applied_by_all(desk: Desk) -> None:
    desk.write(NAMED.format("second"))
    outcome = await desk.reloader.reload()
    assert outcome == Outcome(None, ("gateway.name",))
    assert desk.told == [outcome]
    assert desk.reloader.config.gateway.name == "second"
    for part in (desk.first, desk.second):
        assert (part.prepared, part.applied) == (["second"], ["second"])


async def test_what_has_not_changed_is_said_to_whoever_asks(desk: Desk) -> None:
    assert await desk.reloader.reload() == Outcome()
    assert desk.told == [Outcome()]
    assert desk.first.applied == ["first"]  # a file that the configuration names may have changed


BAD: dict[str, Callable[[Path], object]] = {
    "no TOML": lambda file: file.write_text("[gateway\n"),
    "an unknown key": lambda file: file.write_text("[gateway]\nnome = 1\n"),
    "a wrong type": lambda file: file.write_text("[gateway]\nname = 1\n"),
    "not UTF-8": lambda file: file.write_bytes(b"\xff\xfe"),
    "a reference to nothing": lambda file: file.write_text('[servers.a]\nurl = "${NOT_SET}"\n'),
    "no environment file": lambda file: file.write_text(CHILD),
    "gone": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "too long": lambda file: file.write_text("#" * (1024 * 1024 + 1)),
}


@pytest.mark.holds("M13")
@pytest.mark.parametrize("way", BAD)
async def test_a_bad_file_changes_nothing_and_says_why(way: str, desk: Desk) -> None:
    before = desk.reloader.config
    BAD[way](desk.file)
    async with asyncio.timeout(10):
        outcome = await desk.reloader.reload()
    assert outcome.problem is not None
    assert outcome.problem.startswith(f"{desk.file}")
    assert desk.told == [outcome]
    assert desk.reloader.config is before
    assert desk.first.prepared == desk.second.prepared == []


async def test_it_says_what_check_says(desk: Desk) -> None:
    desk.write("[gateway]\nnome = 1\n[http]\nport = 2\n")
    with pytest.raises(ConfigErrors) as wrong:
        load(desk.file, desk.environ)
    assert (await desk.reloader.reload()).problem == str(wrong.value)
    assert len(str(wrong.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ConfigErrors([ConfigError("keys", 3, "k", "no")]), "keys:3: k: no"),
        (ValueError("expected a certificate"), "{file}: expected a certificate"),
        (OSError(13, "Permission denied"), "{file}: [Errno 13] Permission denied"),
    ],
)
async def test_a_part_that_cannot_keeps_all_the_others_from_changing(
    failure: Exception, said: str, desk: Desk
) -> None:
    desk.second.failure = failure
    desk.write(NAMED.format("second"))
    outcome = await desk.reloader.reload()
    assert outcome.problem == said.format(file=desk.file)
    assert desk.first.prepared == ["second"]
    assert desk.first.applied == []
    assert desk.reloader.config.gateway.name == "first"
    desk.second.failure = None
    assert (await desk.reloader.reload()).problem is None
    assert desk.first.applied == ["second"]


async def test_a_part_that_breaks_is_an_incident_and_changes_nothing(desk: Desk) -> None:
    desk.second.failure = KeyError("canary")
    outcome = await desk.reloader.reload()
    (incident,) = desk.incidents
    assert outcome.problem is not None
    assert incident.id in outcome.problem
    assert "canary" not in outcome.problem
    assert desk.first.applied == []


async def test_what_fails_to_apply_is_an_incident_and_keeps_nobody_else(desk: Desk) -> None:
    def fail() -> None:
        raise LookupError("canary")

    last = Part()
    desk.reloader.add(lambda _: fail)
    desk.reloader.add(last.prepare)
    desk.write(NAMED.format("second"))
    assert (outcome := await desk.reloader.reload()).changed == ("gateway.name",)
    assert reload.PARTLY in (outcome.problem or "")
    assert ("canary" in str(outcome.problem), len(desk.incidents)) == (False, 1)
    assert last.applied == ["second"]


async def test_a_part_says_what_else_has_changed_and_what_has_to_wait(desk: Desk) -> None:
    def prepare(change: Change) -> Apply:
        change.note("keys: another file")
        change.postpone("gateway.state", "http.listen")
        return lambda: None

    desk.reloader.add(prepare)
    desk.write('[gateway]\nname = "b"\nstate = "x"\n')
    outcome = await desk.reloader.reload()
    assert outcome.changed == ("gateway.name", "keys: another file")
    assert outcome.postponed == ("gateway.state",)


async def test_what_has_to_wait_is_told_until_it_is_as_it_runs(desk: Desk) -> None:
    def prepare(change: Change) -> Apply:
        change.postpone("gateway.state", "log")
        return lambda: None

    desk.reloader.add(prepare)
    later = '[gateway]\nname = "b"\nstate = "x"\n[log]\nlevel = "debug"\n'
    waits = ("gateway.state", "log.level")
    desk.write(later)
    assert await desk.reloader.reload() == Outcome(None, ("gateway.name",), waits)
    assert await desk.reloader.reload() == Outcome(None, (), waits)
    desk.write(later.replace('"b"', '"c"'))
    assert await desk.reloader.reload() == Outcome(None, ("gateway.name",), waits)
    desk.write(NAMED.format("c"))
    assert await desk.reloader.reload() == Outcome()


async def test_one_reload_waits_for_another(desk: Desk) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def prepare(change: Change) -> Apply:
        begun.set()
        await gate.wait()
        return lambda: None

    desk.reloader.add(prepare)
    desk.write(NAMED.format("second"))
    one = asyncio.create_task(desk.reloader.reload())
    await begun.wait()
    desk.write(NAMED.format("third"))
    two = asyncio.create_task(desk.reloader.reload())
    gate.set()
    async with asyncio.timeout(10):
        assert (await one).changed == (await two).changed == ("gateway.name",)
    assert desk.first.applied == ["second", "third"]


async def test_calls_go_on_while_a_file_is_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, gate = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Config:
        reading.set()
        assert gate.wait(10)
        return load(*arguments)

    monkeypatch.setattr(reload, "load", slowly)
    task = asyncio.create_task(desk.reloader.reload())
    async with asyncio.timeout(10):
        while not reading.is_set():
            await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        assert (await task).problem is None


async def test_without_a_file_there_is_nothing_to_read() -> None:
    told: list[Outcome] = []
    reloader = Reloader(Config(), {}, told.append)
    outcome = await reloader.reload()
    assert outcome.problem == "the embedded default is served: there is no file to read again"
    await reloader.look()
    await reloader.begin()
    assert told == [outcome]


# Watching


async def test_a_change_is_taken_by_itself(desk: Desk) -> None:
    async with Watching(desk):
        desk.write(NAMED.format("second"))
        assert (await desk.next()).changed == ("gateway.name",)
        desk.file.write_text(NAMED.format("third"))  # in place
        assert (await desk.next()).changed == ("gateway.name",)
    assert desk.reloader.config.gateway.name == "third"


async def test_a_file_behind_a_link_that_is_turned_is_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some.toml").write_text(NAMED.format(name))
    (tmp_path / "data").symlink_to("one")
    desk = Desk(tmp_path)  # as a ConfigMap is mounted
    desk.file.unlink()
    desk.file.symlink_to("data/some.toml")
    async with Watching(desk):
        assert (await desk.next()).changed == ("gateway.name",)
        (tmp_path / "turned").symlink_to("two")
        (tmp_path / "turned").replace(tmp_path / "data")
        await desk.next()
    assert desk.reloader.config.gateway.name == "two"


async def test_what_was_only_touched_is_no_news(desk: Desk) -> None:
    await desk.reloader.begin()
    os.utime(desk.file, ns=(1, 1))
    await desk.reloader.look()
    assert desk.told == []
    assert desk.first.prepared == []


async def test_what_was_reloaded_by_hand_is_no_news(desk: Desk) -> None:
    await desk.reloader.begin()
    desk.write("[gateway\n")
    await desk.reloader.reload()
    os.utime(desk.file, ns=(1, 1))
    await desk.reloader.look()
    assert len(desk.told) == 1


async def test_a_bad_file_is_told_once_and_mended_by_the_next_change(desk: Desk) -> None:
    async with Watching(desk):
        desk.write("[gateway\n")
        assert (await desk.next()).problem is not None
        for _ in range(3):
            await desk.reloader.look()
        assert len(desk.told) == 1
        desk.write(NAMED.format("second"))
        assert (await desk.next()).changed == ("gateway.name",)


async def test_a_file_that_is_half_written_is_read_again_before_anything_is_said(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.reloader.begin()
    once = asyncio.sleep

    async def finish(seconds: float) -> None:
        if seconds == 0.002:
            desk.file.write_text(NAMED.format("whole"))
        await once(0)

    monkeypatch.setattr(reload, "AGAIN", 0.002)
    monkeypatch.setattr(asyncio, "sleep", finish)
    desk.file.write_text('[gateway]\nname = "wh')
    await desk.reloader.look()
    assert desk.told == [Outcome(None, ("gateway.name",))]


async def test_files_that_change_at_once_are_one_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    desk = Desk(tmp_path, CHILD)
    await desk.reloader.begin()
    once = asyncio.sleep
    writes = [
        lambda: (tmp_path / "a.env").write_text("A=22\n"),
        lambda: desk.file.write_text(CHILD + NAMED.format("second")),
    ]

    async def meanwhile(seconds: float) -> None:
        if writes:
            writes.pop()()
        await once(0)

    monkeypatch.setattr(asyncio, "sleep", meanwhile)
    desk.file.write_text(CHILD + NAMED.format("half way"))
    await desk.reloader.look()
    assert desk.told == [Outcome(None, ("servers.a: started anew (env)", "gateway.name"))]
    assert desk.first.prepared == ["second"]


async def test_one_who_never_stops_writing_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.reloader.begin()
    desk.write(NAMED.format("second"))
    once, writes = asyncio.sleep, list[float]()

    async def write(seconds: float) -> None:
        if seconds:
            writes.append(seconds)
            desk.file.write_text(NAMED.format("x" * len(writes)))
        await once(0)

    monkeypatch.setattr(asyncio, "sleep", write)
    await desk.reloader.look()
    assert len(writes) == reload.RESTLESS
    assert desk.told == [Outcome(None, ("gateway.name",))]


async def test_files_that_the_configuration_names_are_watched(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    (tmp_path / "token").write_text("one")
    text = CHILD + '[servers.b]\nurl = "http://b/"\nheaders = { x = "${file:token}" }\n'
    desk = Desk(tmp_path, text)
    async with Watching(desk):
        (tmp_path / "a.env").write_text("A=2\n")
        assert (await desk.next()).changed == ("servers.a: started anew (env)",)
        (tmp_path / "token").write_text("two")
        assert (await desk.next()).changed == ("servers.b: started anew (headers)",)


async def test_a_file_that_was_missing_is_waited_for(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with Watching(desk):
        desk.write(CHILD)
        assert "a.env" in ((await desk.next()).problem or "")
        (tmp_path / "a.env").write_text("A=1\n")
        assert (await desk.next()).changed == ("servers.a: added", "gateway.name")


async def test_without_watch_only_those_who_ask_are_heard(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "[gateway]\nwatch = false\n")
    async with Watching(desk):
        desk.write('[gateway]\nwatch = false\nname = "second"\n')
        for _ in range(3):
            await desk.reloader.look()
        assert desk.told == []
        desk.reloader.ask()
        desk.reloader.ask()
        assert (await desk.next()).changed == ("gateway.name",)
        desk.write("")
        desk.reloader.ask()
        assert (await desk.next()).changed == ("gateway.name", "gateway.watch")
        desk.write(NAMED.format("watched"))
        assert (await desk.next()).changed == ("gateway.name",)


async def test_what_changed_before_it_was_watched_is_taken(desk: Desk) -> None:
    desk.write(NAMED.format("second"))
    async with Watching(desk):
        assert (await desk.next()).changed == ("gateway.name",)


async def test_what_can_be_read_only_once_is_not_watched(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    BAD["a pipe"](desk.file)
    await desk.reloader.begin()
    await desk.reloader.look()
    assert desk.told == []


async def test_whatever_goes_wrong_in_a_turn_the_next_one_comes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = desk.hear

    def stumble(outcome: Outcome) -> None:
        monkeypatch.setattr(desk, "hear", heard)
        heard(outcome)
        raise KeyError("once")

    await desk.reloader.begin()
    monkeypatch.setattr(desk, "hear", stumble)
    task = asyncio.create_task(desk.reloader.run())
    for name in ("second", "third"):
        desk.write(NAMED.format(name))
        await desk.next()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(desk.incidents) == 1
