"""Hiding a process from others of the same user, and recognising its descendants."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

HIDE = "from trunkline.process_access import hide_secrets; hide_secrets(keep=('KEPT',))\n"


def run_hidden(program: str, **variables: str) -> str:
    """Run a program in a process of its own that hides itself first; return its output."""
    command = [sys.executable, "-c", f"import ctypes, os, subprocess\n{HIDE}{program}"]
    environ = {**os.environ, **variables}
    return subprocess.check_output(command, text=True, timeout=30, env=environ).strip("\n\0")


def test_only_kept_variables_stay_in_the_visible_environment() -> None:
    shown = run_hidden("print(open('/proc/self/environ').read())", KEPT="yes", GONE="secret")
    assert shown.strip("\0") == "KEPT=yes"


def test_all_variables_keep_their_values_in_python_and_in_c() -> None:
    libc = "libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p\n"
    program = f"{libc}print(os.environ['ONE'], libc.getenv(b'TWO').decode())"
    assert run_hidden(program, ONE="first", TWO="sécond") == "first sécond"


def test_a_child_that_inherits_the_environment_gets_all_variables() -> None:
    program = "print(subprocess.check_output(['sh', '-c', 'echo $ONE'], text=True))"
    assert run_hidden(program, ONE="first") == "first"


def test_a_variable_without_a_name_or_value_is_no_problem() -> None:
    command = ["env", "-i", "=odd", "EMPTY=", sys.executable, "-c", HIDE + "print('ok')"]
    assert subprocess.check_output(command, text=True, timeout=30) == "ok\n"


def test_a_hidden_process_can_still_examine_itself() -> None:
    program = """
print(len(os.listdir('/proc/self/fd')) > 2, len(open('/proc/self/statm').read().split()))
print(open('/proc/self/stat').read().split()[0] == str(os.getpid()))
"""
    assert run_hidden(program).split() == ["True", "7", "True"]


def test_a_program_started_by_a_hidden_process_is_not_hidden() -> None:
    program = "print(subprocess.check_output(['cat', '/proc/self/environ'], env={'A': 'b'}))"
    assert "A=b" in run_hidden(program)
