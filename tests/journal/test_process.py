"""Whether a process is still the one that it was."""

import os
import subprocess

import pytest

from trunkline.journal import process
from trunkline.journal.process import born, is_running


def test_we_are_running_and_one_that_ended_is_not() -> None:
    assert is_running(os.getpid(), born(os.getpid()))
    with subprocess.Popen(["true"]) as child:
        child.wait(20)
    assert not is_running(child.pid, born(child.pid))


def test_one_that_ended_and_whose_parent_has_not_asked_is_not_running() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        began = born(child.pid)
        assert is_running(child.pid, began)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert born(child.pid) == began
        # Where the system tells nothing the number has to do, and that is still taken.
        assert is_running(child.pid, began) is (began == "")


def test_where_the_system_tells_nothing_the_number_has_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(process.Path, "read_text", refuse)
    assert born(os.getpid()) == ""
    assert is_running(os.getpid(), "")


def test_another_of_the_same_number_is_another() -> None:
    assert not is_running(os.getpid(), "1@long ago")


def test_a_process_of_somebody_else_is_taken_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(process.os, "kill", refuse)
    assert is_running(1, "whenever")
