"""Reloading: an invalid file changes nothing, and a valid one is applied once to every part."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks import HANG_TIMEOUT, hang_guard
from trunkline.app import reload
from trunkline.app.reload import Apply, ConfigChange, ConfigReloader, ReloadResult, ReloadTimings
from trunkline.config import Config, ConfigError, ConfigErrors, load_config
from trunkline.jsonrpc import Incident

NAMED = '[gateway]\nname = "{}"\n'
CHILD = '[servers.a]\ncommand = "x"\nenv_file = "a.env"\n'


TIMINGS = ReloadTimings(poll_interval=0.001, quiet_period=0.001, retry_delay=0.002)


class Part:
    """A reloadable part that records the gateway names it prepared and applied."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.applied: list[str] = []
        self.failure: Exception | None = None

    def prepare(self, change: ConfigChange) -> Apply:
        if self.failure is not None:
            raise self.failure
        self.prepared.append(change.new.gateway.name)
        return lambda: self.applied.append(change.new.gateway.name)

    async def prepare_later(self, change: ConfigChange) -> Apply:
        await asyncio.sleep(0)
        return self.prepare(change)


class ReloadHarness:
    """A reloader with its file, two parts, and the recorded results."""

    def __init__(self, folder: Path, text: str = NAMED.format("first")) -> None:
        self.file = folder / "some.toml"
        self.file.write_text(text)
        self.results: list[ReloadResult] = []
        self.incidents: list[Incident] = []
        self.result_arrived = asyncio.Event()
        self.environ = {"HOME": str(folder)}
        config = load_config(self.file, self.environ)
        self.reloader = ConfigReloader(
            config, self.environ, self.on_result, self.incidents.append, TIMINGS
        )
        self.first, self.second = Part(), Part()
        self.reloader.add(self.first.prepare)
        self.reloader.add(self.second.prepare_later)

    def on_result(self, outcome: ReloadResult) -> None:
        self.record(outcome)

    def record(self, outcome: ReloadResult) -> None:
        self.results.append(outcome)
        self.result_arrived.set()

    async def next(self) -> ReloadResult:
        async with hang_guard():
            await self.result_arrived.wait()
        self.result_arrived.clear()
        return self.results[-1]

    def write(self, text: str) -> None:
        """Replace the file atomically."""
        new_file = self.file.with_suffix(".new")
        new_file.write_text(text)
        new_file.replace(self.file)


@pytest.fixture
async def harness(tmp_path: Path) -> ReloadHarness:
    return ReloadHarness(tmp_path)


class WatchedReloader:
    """Runs the reloader of a harness inside the context."""

    def __init__(self, harness: ReloadHarness) -> None:
        self.harness = harness

    async def __aenter__(self) -> ReloadHarness:
        await self.harness.reloader.start()
        self.task = asyncio.create_task(self.harness.reloader.run())
        return self.harness

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert self.harness.incidents == []


async def test_a_valid_file_is_prepared_and_then_applied_by_every_part(
    harness: ReloadHarness,
) -> None:
    harness.write(NAMED.format("second"))
    outcome = await harness.reloader.reload()
    assert outcome == ReloadResult(None, ("gateway.name",))
    assert harness.results == [outcome]
    assert harness.reloader.config.gateway.name == "second"
    for part in (harness.first, harness.second):
        assert (part.prepared, part.applied) == (["second"], ["second"])


async def test_a_reload_without_changes_is_reported_and_applied(harness: ReloadHarness) -> None:
    assert await harness.reloader.reload() == ReloadResult()
    assert harness.results == [ReloadResult()]
    assert harness.first.applied == [
        "first"
    ]  # a file that the configuration references may have changed


BREAK_FILE: dict[str, Callable[[Path], object]] = {
    "no TOML": lambda file: file.write_text("[gateway\n"),
    "an unknown key": lambda file: file.write_text("[gateway]\nnome = 1\n"),
    "a wrong type": lambda file: file.write_text("[gateway]\nname = 1\n"),
    "not UTF-8": lambda file: file.write_bytes(b"\xff\xfe"),
    "gone": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "too long": lambda file: file.write_text("#" * (1024 * 1024 + 1)),
}


@pytest.mark.holds("M13")
@pytest.mark.parametrize("kind", BREAK_FILE)
async def test_an_invalid_file_changes_nothing_and_reports_the_reason(
    kind: str, harness: ReloadHarness
) -> None:
    before = harness.reloader.config
    BREAK_FILE[kind](harness.file)
    async with hang_guard():
        outcome = await harness.reloader.reload()
    assert outcome.problem is not None
    assert outcome.problem.startswith(f"{harness.file}")
    assert harness.results == [outcome]
    assert harness.reloader.config is before
    assert harness.first.prepared == harness.second.prepared == []


async def test_a_reload_reports_the_same_errors_as_loading(harness: ReloadHarness) -> None:
    harness.write("[gateway]\nnome = 1\n[http]\nport = 2\n")
    with pytest.raises(ConfigErrors) as raised:
        load_config(harness.file, harness.environ)
    assert (await harness.reloader.reload()).problem == str(raised.value)
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ConfigErrors([ConfigError("keys", 3, "k", "no")]), "keys:3: k: no"),
        (ValueError("expected a certificate"), "{file}: expected a certificate"),
        (OSError(13, "Permission denied"), "{file}: [Errno 13] Permission denied"),
    ],
)
async def test_a_part_that_refuses_a_change_prevents_the_whole_reload(
    failure: Exception, expected: str, harness: ReloadHarness
) -> None:
    harness.second.failure = failure
    harness.write(NAMED.format("second"))
    outcome = await harness.reloader.reload()
    assert outcome.problem == expected.format(file=harness.file)
    assert harness.first.prepared == ["second"]
    assert harness.first.applied == []
    assert harness.reloader.config.gateway.name == "first"
    harness.second.failure = None
    assert (await harness.reloader.reload()).problem is None
    assert harness.first.applied == ["second"]


async def test_an_exception_in_prepare_is_an_incident_and_changes_nothing(
    harness: ReloadHarness,
) -> None:
    harness.second.failure = KeyError("canary")
    outcome = await harness.reloader.reload()
    (incident,) = harness.incidents
    assert outcome.problem is not None
    assert incident.id in outcome.problem
    assert "canary" not in outcome.problem
    assert harness.first.applied == []


async def test_an_exception_in_apply_is_an_incident_and_the_other_parts_are_applied(
    harness: ReloadHarness,
) -> None:
    def fail() -> None:
        raise LookupError("canary")

    last = Part()
    harness.reloader.add(lambda _: fail)
    harness.reloader.add(last.prepare)
    harness.write(NAMED.format("second"))
    assert (outcome := await harness.reloader.reload()).changed == ("gateway.name",)
    assert reload.PARTIAL_RELOAD in (outcome.problem or "")
    assert ("canary" in str(outcome.problem), len(harness.incidents)) == (False, 1)
    assert last.applied == ["second"]


async def test_a_part_can_add_notes_and_postpone_keys(harness: ReloadHarness) -> None:
    def prepare(change: ConfigChange) -> Apply:
        change.note("keys: another file")
        change.postpone("gateway.state_dir", "http.listen")
        return lambda: None

    harness.reloader.add(prepare)
    harness.write('[gateway]\nname = "b"\nstate_dir = "x"\n')
    outcome = await harness.reloader.reload()
    assert outcome.changed == ("gateway.name", "keys: another file")
    assert outcome.postponed == ("gateway.state_dir",)


async def test_postponed_keys_are_reported_until_the_file_matches_the_running_gateway(
    harness: ReloadHarness,
) -> None:
    def prepare(change: ConfigChange) -> Apply:
        change.postpone("gateway.state_dir", "log")
        return lambda: None

    harness.reloader.add(prepare)
    new_config = '[gateway]\nname = "b"\nstate_dir = "x"\n[log]\nlevel = "debug"\n'
    postponed = ("gateway.state_dir", "log.level")
    harness.write(new_config)
    assert await harness.reloader.reload() == ReloadResult(None, ("gateway.name",), postponed)
    assert await harness.reloader.reload() == ReloadResult(None, (), postponed)
    harness.write(new_config.replace('"b"', '"c"'))
    assert await harness.reloader.reload() == ReloadResult(None, ("gateway.name",), postponed)
    harness.write(NAMED.format("c"))
    assert await harness.reloader.reload() == ReloadResult()


async def test_a_reload_waits_for_the_previous_one(harness: ReloadHarness) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def prepare(change: ConfigChange) -> Apply:
        started.set()
        await gate.wait()
        return lambda: None

    harness.reloader.add(prepare)
    harness.write(NAMED.format("second"))
    first_reload = asyncio.create_task(harness.reloader.reload())
    await started.wait()
    harness.write(NAMED.format("third"))
    second_reload = asyncio.create_task(harness.reloader.reload())
    gate.set()
    async with hang_guard():
        assert (await first_reload).changed == (await second_reload).changed == ("gateway.name",)
    assert harness.first.applied == ["second", "third"]


async def test_the_event_loop_runs_while_a_file_is_read(
    harness: ReloadHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, gate = threading.Event(), threading.Event()

    def load_when_released(*arguments: Any) -> Config:
        reading.set()
        assert gate.wait(HANG_TIMEOUT)
        return load_config(*arguments)

    monkeypatch.setattr(reload, "load_config", load_when_released)
    task = asyncio.create_task(harness.reloader.reload())
    async with hang_guard():
        while not reading.is_set():
            await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        assert (await task).problem is None


async def test_without_a_configuration_file_there_is_nothing_to_reload() -> None:
    results: list[ReloadResult] = []
    reloader = ConfigReloader(Config(), {}, results.append)
    outcome = await reloader.reload()
    assert outcome.problem == "the gateway runs without a configuration file; nothing to reload"
    await reloader.check_files()
    await reloader.start()
    assert results == [outcome]


# Watching


async def test_a_changed_file_is_reloaded_without_a_request(harness: ReloadHarness) -> None:
    async with WatchedReloader(harness):
        harness.write(NAMED.format("second"))
        assert (await harness.next()).changed == ("gateway.name",)
        harness.file.write_text(NAMED.format("third"))  # without replacing it
        assert (await harness.next()).changed == ("gateway.name",)
    assert harness.reloader.config.gateway.name == "third"


async def test_a_changed_symlink_target_is_reloaded(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some.toml").write_text(NAMED.format(name))
    (tmp_path / "data").symlink_to("one")
    harness = ReloadHarness(tmp_path)  # like a mounted ConfigMap of Kubernetes
    harness.file.unlink()
    harness.file.symlink_to("data/some.toml")
    async with WatchedReloader(harness):
        assert (await harness.next()).changed == ("gateway.name",)
        (tmp_path / "new-link").symlink_to("two")
        (tmp_path / "new-link").replace(tmp_path / "data")
        await harness.next()
    assert harness.reloader.config.gateway.name == "two"


async def test_a_touched_but_unchanged_file_is_not_reloaded(harness: ReloadHarness) -> None:
    await harness.reloader.start()
    os.utime(harness.file, ns=(1, 1))
    await harness.reloader.check_files()
    assert harness.results == []
    assert harness.first.prepared == []


async def test_a_file_reloaded_by_request_is_not_reloaded_again(harness: ReloadHarness) -> None:
    await harness.reloader.start()
    harness.write("[gateway\n")
    await harness.reloader.reload()
    os.utime(harness.file, ns=(1, 1))
    await harness.reloader.check_files()
    assert len(harness.results) == 1


async def test_an_invalid_file_is_reported_once_until_it_changes_again(
    harness: ReloadHarness,
) -> None:
    async with WatchedReloader(harness):
        harness.write("[gateway\n")
        assert (await harness.next()).problem is not None
        for _ in range(3):
            await harness.reloader.check_files()
        assert len(harness.results) == 1
        harness.write(NAMED.format("second"))
        assert (await harness.next()).changed == ("gateway.name",)


async def test_a_partly_written_file_is_read_again_before_an_error_is_reported(
    harness: ReloadHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.reloader.start()
    original_sleep = asyncio.sleep

    async def finish_the_file(seconds: float) -> None:
        if seconds == 0.002:
            harness.file.write_text(NAMED.format("whole"))
        await original_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", finish_the_file)
    harness.file.write_text('[gateway]\nname = "wh')
    await harness.reloader.check_files()
    assert harness.results == [ReloadResult(None, ("gateway.name",))]


async def test_files_that_change_together_are_reloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    harness = ReloadHarness(tmp_path, CHILD)
    await harness.reloader.start()
    original_sleep = asyncio.sleep
    writes = [
        lambda: (tmp_path / "a.env").write_text("A=22\n"),
        lambda: harness.file.write_text(CHILD + NAMED.format("second")),
    ]

    async def write_during_sleep(seconds: float) -> None:
        if writes:
            writes.pop()()
        await original_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", write_during_sleep)
    harness.file.write_text(CHILD + NAMED.format("half way"))
    await harness.reloader.check_files()
    assert harness.results == [ReloadResult(None, ("servers.a: restarted (env)", "gateway.name"))]
    assert harness.first.prepared == ["second"]


async def test_a_file_that_never_stops_changing_is_reloaded_after_the_maximum_wait(
    harness: ReloadHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.reloader.start()
    harness.write(NAMED.format("second"))
    original_sleep, writes = asyncio.sleep, list[float]()

    async def write(seconds: float) -> None:
        if seconds:
            writes.append(seconds)
            harness.file.write_text(NAMED.format("x" * len(writes)))
        await original_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", write)
    await harness.reloader.check_files()
    assert len(writes) == TIMINGS.max_quiet_waits
    assert harness.results == [ReloadResult(None, ("gateway.name",))]


async def test_files_referenced_by_the_configuration_are_watched(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    (tmp_path / "token").write_text("one")
    text = CHILD + '[servers.b]\nurl = "http://b/"\nheaders = { x = "${file:token}" }\n'
    harness = ReloadHarness(tmp_path, text)
    async with WatchedReloader(harness):
        (tmp_path / "a.env").write_text("A=2\n")
        assert (await harness.next()).changed == ("servers.a: restarted (env)",)
        (tmp_path / "token").write_text("two")
        assert (await harness.next()).changed == ("servers.b: restarted (headers)",)


async def test_a_missing_file_is_watched_until_it_exists(tmp_path: Path) -> None:
    harness = ReloadHarness(tmp_path)
    async with WatchedReloader(harness):
        harness.write(CHILD)
        result = await harness.next()
        assert result.changed == ("servers.a: added", "gateway.name")
        assert "a.env" in "".join(result.notes)
        (tmp_path / "a.env").write_text("A=1\n")
        result = await harness.next()
        assert (result.changed, result.notes) == (("servers.a: restarted (unresolved, env)",), ())


TAKE_AWAY: dict[str, Callable[[Path], object]] = {
    "a variable": lambda file: file.write_text(CHILD + 'args = ["${NOT_SET}"]\n'),
    "a file": lambda file: (file.parent / "a.env").unlink(),
}


@pytest.mark.parametrize("what", TAKE_AWAY)
async def test_a_reload_never_takes_away_what_a_running_server_needs(
    what: str, tmp_path: Path
) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    harness = ReloadHarness(tmp_path, CHILD)
    before = harness.reloader.config
    TAKE_AWAY[what](harness.file)
    result = await harness.reloader.reload()
    assert (result.problem or "").startswith(f"{harness.file}:")
    assert harness.reloader.config is before


async def test_without_reload_on_change_only_requests_cause_a_reload(tmp_path: Path) -> None:
    harness = ReloadHarness(tmp_path, "[gateway]\nreload_on_change = false\n")
    async with WatchedReloader(harness):
        harness.write('[gateway]\nreload_on_change = false\nname = "second"\n')
        for _ in range(3):
            await harness.reloader.check_files()
        assert harness.results == []
        harness.reloader.request_reload()
        harness.reloader.request_reload()
        assert (await harness.next()).changed == ("gateway.name",)
        harness.write("")
        harness.reloader.request_reload()
        assert (await harness.next()).changed == ("gateway.name", "gateway.reload_on_change")
        harness.write(NAMED.format("watched"))
        assert (await harness.next()).changed == ("gateway.name",)


async def test_a_change_before_the_watch_started_is_reloaded(harness: ReloadHarness) -> None:
    harness.write(NAMED.format("second"))
    async with WatchedReloader(harness):
        assert (await harness.next()).changed == ("gateway.name",)


async def test_a_pipe_is_not_watched(tmp_path: Path) -> None:
    harness = ReloadHarness(tmp_path)
    BREAK_FILE["a pipe"](harness.file)
    await harness.reloader.start()
    await harness.reloader.check_files()
    assert harness.results == []


async def test_an_exception_while_watching_does_not_stop_the_watch(
    harness: ReloadHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = harness.record

    def fail_once(outcome: ReloadResult) -> None:
        monkeypatch.setattr(harness, "record", record)
        record(outcome)
        raise KeyError("once")

    await harness.reloader.start()
    monkeypatch.setattr(harness, "record", fail_once)
    task = asyncio.create_task(harness.reloader.run())
    for name in ("second", "third"):
        harness.write(NAMED.format(name))
        await harness.next()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(harness.incidents) == 1
