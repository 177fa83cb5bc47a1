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


def test_another_of_the_same_number_is_another() -> None:
    assert not is_running(os.getpid(), "1@long ago")


def test_a_process_of_somebody_else_is_taken_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(process.os, "kill", refuse)
    assert is_running(1, "whenever")
