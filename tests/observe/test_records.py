"""What is said by `logging` is a line of the log: one, whoever says it, and without secrets."""

import asyncio
import logging
import sys
from collections.abc import Generator

import pytest

from trunkline.observe.log_lines import Line
from trunkline.observe.records import MAX_TEXT, OURS, Records, heard, held_back, line_of_record

PART = logging.getLogger("trunkline.journal.writer")
LIBRARY = logging.getLogger("asyncio")


@pytest.fixture(autouse=True)
def quiet() -> Generator[None]:
    """Leave the loggers as they were: nobody has forgotten to stop listening."""
    before = [list(logging.getLogger(name).handlers) for name in (None, OURS)]
    yield
    assert [list(logging.getLogger(name).handlers) for name in (None, OURS)] == before


def record(name: str, text: str, *given: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord(name, level, "x.py", 1, text, given, None)


def test_a_line_has_the_name_of_the_part_and_says_nothing_twice() -> None:
    found = line_of_record(record("trunkline.journal.writer", "trunkline: it is %s", "full"))
    assert found == Line("warning", "journal", "it is full")


@pytest.mark.parametrize(
    ("number", "level"),
    [(50, "error"), (40, "error"), (30, "warning"), (20, "info"), (10, "debug")],
)
def test_it_is_as_grave_as_it_was(number: int, level: str) -> None:
    assert line_of_record(record("trunkline.app", "x", level=number)).level == level


def test_it_is_one_line_and_not_too_long() -> None:
    found = line_of_record(record("trunkline.sources.shelf", "not good:\na\x1b[31m\nb"))
    assert found.text == "not good: a\\x1b[31m; b"
    assert len(line_of_record(record("trunkline.app", "x" * 5000)).text) == MAX_TEXT


def test_of_an_exception_only_what_it_is_and_where_it_was_is_told() -> None:
    try:
        raise KeyError("s3cret")
    except KeyError:
        text = "Task exception was never retrieved\nfuture: <Task exception=KeyError('s3cret')>"
        said = logging.LogRecord("asyncio", 40, "x.py", 1, text, (), sys.exc_info())
    found = line_of_record(said)
    assert (found.kind, found.facts["error"]) == ("asyncio", "KeyError")
    assert found.text.startswith("Task exception was never retrieved: KeyError at ")
    assert "s3cret" not in str(found)
    assert line_of_record(record("asyncio", "")).text == ""


@pytest.mark.parametrize(
    ("everybody", "kinds"), [(True, ["journal", "asyncio"]), (False, ["journal"])]
)
async def test_libraries_are_heard_where_the_process_is_ours(
    everybody: bool, kinds: list[str]
) -> None:
    said: list[Line] = []
    with heard(said.append, everybody):
        PART.warning("one")
        LIBRARY.warning("two")
    PART.warning("nobody listens any more")
    assert [line.kind for line in said] == kinds


async def test_a_thread_has_it_said_where_the_log_is_used() -> None:
    said: list[tuple[str, bool]] = []

    def say(line: Line) -> None:
        said.append((line.text, asyncio.get_running_loop() is loop))

    loop = asyncio.get_running_loop()
    with heard(say, everybody=True):
        await asyncio.to_thread(PART.warning, "one")
    assert said == [("one", True)]


async def test_a_line_that_cannot_be_made_hurts_nobody() -> None:
    said: list[Line] = []
    Records(said.append).handle(record("trunkline.app", "%d", "no number"))
    assert said == []


async def test_what_is_said_too_early_is_said_once_somebody_listens() -> None:
    said: list[Line] = []
    with held_back():
        PART.warning("early")
        hearing = heard(said.append, everybody=True)
        hearing.__enter__()
        assert [line.text for line in said] == []
    hearing.__exit__(None, None, None)
    assert [line.text for line in said] == ["early"]


def test_nothing_is_lost_if_nobody_ever_does(capsys: pytest.CaptureFixture[str]) -> None:
    def begin() -> None:
        with held_back():
            PART.warning("early")
            raise FileNotFoundError

    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        with pytest.raises(FileNotFoundError):
            begin()
    finally:
        root.handlers = kept
    assert capsys.readouterr().err == "early\n"
