"""Hiding a process from others of the same user, and recognising its descendants."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from tests.tasks import HANG_TIMEOUT
from trunkline import process_access
from trunkline.process_access import UnknownPeer, find_ancestors, find_peer_ancestors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

HIDE = "from trunkline.process_access import hide_secrets; hide_secrets(keep=('KEPT',))\n"


def run_hidden(program: str, **variables: str) -> str:
    """Run a program in a process of its own that hides itself first; return its output."""
    command = [sys.executable, "-c", f"import ctypes, os, subprocess\n{HIDE}{program}"]
    environ = {**os.environ, **variables}
    return subprocess.check_output(command, text=True, timeout=HANG_TIMEOUT, env=environ).strip(
        "\n\0"
    )


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
    assert subprocess.check_output(command, text=True, timeout=HANG_TIMEOUT) == "ok\n"


def test_a_hidden_process_can_still_examine_itself() -> None:
    program = """
print(len(os.listdir('/proc/self/fd')) > 2, len(open('/proc/self/statm').read().split()))
print(open('/proc/self/stat').read().split()[0] == str(os.getpid()))
"""
    assert run_hidden(program).split() == ["True", "7", "True"]


def test_a_program_started_by_a_hidden_process_is_not_hidden() -> None:
    program = "print(subprocess.check_output(['cat', '/proc/self/environ'], env={'A': 'b'}))"
    assert "A=b" in run_hidden(program)


@contextmanager
def listening(folder: Path) -> Generator[tuple[socket.socket, str]]:
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield listener, path


CONNECT = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("option", [77, 9999])  # 9999: as with a kernel that lacks the option
def test_a_peer_is_found_with_all_its_ancestors_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: int
) -> None:
    monkeypatch.setattr(process_access, "_SO_PEERPIDFD", option)
    command = [sys.executable, "-c", CONNECT]
    with listening(tmp_path) as (listener, path):
        process = subprocess.Popen([*command, path], stdin=PIPE, stdout=PIPE)
        with process, listener.accept()[0] as accepted:
            chain = find_peer_ancestors(accepted.fileno())
            pids = [each.pid for each in chain]
            assert pids[:3] == [process.pid, os.getpid(), os.getppid()]
            assert chain == find_ancestors(process.pid)
            process.communicate()
            with pytest.raises(UnknownPeer, match="has ended"):
                find_peer_ancestors(accepted.fileno())


def test_a_peer_that_has_ended_but_is_not_reaped_is_unknown(tmp_path: Path) -> None:
    with listening(tmp_path) as (listener, path):
        command = [sys.executable, "-c", CONNECT, path]
        with subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE) as process:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with listener.accept()[0] as accepted, pytest.raises(UnknownPeer, match="has ended"):
                find_peer_ancestors(accepted.fileno())


def test_a_peer_of_an_unknown_namespace_and_a_closed_descriptor_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UnknownPeer, match="cannot be examined"):
        find_peer_ancestors(10**6)
    one, two = socket.socketpair()

    def unpack(*_: object) -> tuple[int, int, int]:
        return 0, 0, 0

    with one, two:
        assert find_peer_ancestors(one.fileno())[0].pid == os.getpid()
        monkeypatch.setattr("struct.unpack", unpack)
        with pytest.raises(UnknownPeer, match="another PID namespace"):
            find_peer_ancestors(one.fileno())


def test_a_parent_that_is_younger_than_its_child_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read_stat(pid: int) -> tuple[str, list[str]]:
        parent, start = {7: ("6", "100"), 6: ("1", "101")}[pid]
        return "name", ["S", parent, *["0"] * 17, start]

    monkeypatch.setattr(process_access, "_read_stat", read_stat)
    with pytest.raises(UnknownPeer, match="the process 6 ended"):
        find_ancestors(7)


def test_the_name_of_a_process_is_seen_by_its_descendants() -> None:
    program = """
import os, subprocess, sys
from trunkline.process_access import PROCESS_NAME, find_ancestors, set_process_name
set_process_name()
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
    names = [each.name for each in find_ancestors(child.pid)]
print(names[0], names[1] == PROCESS_NAME)
"""
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True, timeout=HANG_TIMEOUT) == "cat True\n"


ADOPT = """
import asyncio, os, subprocess, sys
from trunkline.process_access import adopt_orphans
from trunkline.stdio.orphan_reaper import AdoptedProcesses, find_children, kill_children

async def main():
    adopt_orphans()
    adopted = AdoptedProcesses(asyncio.get_running_loop())
    # The shell ends at once; `true` does too, and `cat` reads until it is killed.
    subprocess.run(["sh", "-c", "setsid true & setsid cat <&3 &"], pass_fds=[3])
    while len(left := find_children(os.getpid())) != 1:
        adopted.reap()
    print(len(left))
    adopted.close()

reading, writing = os.pipe()
os.dup2(reading, 3)
asyncio.run(main())
kill_children()
print(find_children(os.getpid()))
"""


def test_orphans_are_adopted_reaped_and_killed_at_the_end() -> None:
    command = [sys.executable, "-c", ADOPT]
    result = subprocess.run(command, stdout=PIPE, text=True, timeout=HANG_TIMEOUT, check=True)
    assert result.stdout.split("\n") == ["1", "[]", ""]


AS_FIRST_PROCESS = """
import os, signal, sys
own, os.getpid = os.getpid(), lambda: 1
from trunkline.process_access import set_default_action
set_default_action(signal.Signals[sys.argv[1]])
print(signal.getsignal(signal.Signals[sys.argv[1]]) is signal.SIG_DFL, flush=True)
os.kill(own, signal.Signals[sys.argv[1]])
signal.pause()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_first_process_of_a_container(name: str) -> None:
    # The kernel would drop the signal without a handler.
    command = [sys.executable, "-c", AS_FIRST_PROCESS, name]
    done = subprocess.run(command, timeout=HANG_TIMEOUT, check=False, stdout=PIPE)
    assert (done.stdout, done.returncode) == (b"False\n", 128 + signal.Signals[name])


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_the_kernel_ends_another_process_at_a_signal(name: str) -> None:
    program = AS_FIRST_PROCESS.replace("lambda: 1", "os.getpid")
    command = [sys.executable, "-c", program, name]
    done = subprocess.run(command, timeout=HANG_TIMEOUT, check=False, stdout=PIPE)
    assert (done.stdout, done.returncode) == (b"True\n", -signal.Signals[name])
