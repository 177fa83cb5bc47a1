"""Sandboxes without bubblewrap: what a child cannot do, and what cannot be enforced."""

import os
import pwd
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from tests.sandboxes import (
    PYTHON,
    expect_limited_memory,
    expect_no_gateway_environment,
    expect_no_network,
    expect_only_listed_files,
    sandboxed,
)
from tests.stdio.test_child import leaves_nothing_behind, open_life_signs, script
from trunkline.stdio import sandbox
from trunkline.stdio.child import ChildProcess, ChildStartError
from trunkline.stdio.sandbox import SandboxSettings
from trunkline.stdio.sandbox_launcher import MIN_LANDLOCK_ABI, landlock_abi

IS_ROOT = os.geteuid() == 0
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
landlock = pytest.mark.skipif(landlock_abi() < MIN_LANDLOCK_ABI, reason="needs Landlock")
root = pytest.mark.skipif(not IS_ROOT, reason="only root can change the user")


@pytest.fixture(autouse=True)
def without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "find_bubblewrap", lambda: None)


async def start_error(settings: SandboxSettings, *argv: str) -> str:
    with pytest.raises(ChildStartError) as failure:
        await ChildProcess.start(list(argv) or ["cat"], cwd="/", sandbox=settings)
    return str(failure.value)


# What holds


@landlock
@leaves_nothing_behind
async def test_a_child_reads_and_writes_only_what_is_listed(tmp_path: Path) -> None:
    await expect_only_listed_files(tmp_path, "Landlock")


@linux
@leaves_nothing_behind
async def test_a_child_without_network_reaches_no_address() -> None:
    await expect_no_network(SandboxSettings(network=False), "seccomp")


@landlock
@leaves_nothing_behind
async def test_a_child_with_hidden_files_cannot_read_the_environment_of_the_gateway() -> None:
    await expect_no_gateway_environment(SandboxSettings(read_only=()))


@landlock
@leaves_nothing_behind
async def test_a_child_with_hidden_files_cannot_signal_the_gateway() -> None:
    if landlock_abi() < 6:
        pytest.skip("this kernel does not restrict signals")
    async with sandboxed(SandboxSettings(read_only=())) as program:
        assert await program.fails(f"os.kill({os.getpid()}, 0)")
        assert await program.evaluate("os.kill(os.getpid(), 0)") == "None"


@landlock
@leaves_nothing_behind
async def test_a_child_with_hidden_files_reaches_no_program_behind_a_unix_socket(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(f"{tmp_path}/bus")
        bus.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect('{tmp_path}/bus')"
        async with sandboxed(SandboxSettings()) as program:
            assert await program.evaluate(connect) == "None"
        async with sandboxed(SandboxSettings(read_only=(str(tmp_path),))) as program:
            assert await program.fails(connect)
            assert "fd=" in await program.evaluate("socket.socket(socket.AF_INET)")
            assert "fd=" in await program.evaluate("socket.socketpair()")


@linux
@leaves_nothing_behind
async def test_a_child_gets_no_more_memory_than_its_limit() -> None:
    await expect_limited_memory(SandboxSettings(memory_mib=64))


@leaves_nothing_behind
async def test_a_child_ends_after_its_cpu_time() -> None:
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    sandbox = SandboxSettings(cpu_seconds=1, no_new_privs=sys.platform == "linux")
    child = await ChildProcess.start(command, sandbox=sandbox)
    assert await child.wait() == -signal.SIGKILL
    await child.aclose()


@linux
@leaves_nothing_behind
async def test_privileges_are_dropped_unless_configured() -> None:
    names = "('CapEff:', 'NoNewPrivs:')"
    status = f"[l.split()[1] for l in open('/proc/self/status') if l.startswith({names})]"
    async with sandboxed(SandboxSettings()) as program:
        assert await program.evaluate(status) == "['0000000000000000', '1']"
    async with sandboxed(SandboxSettings(no_new_privs=False)) as program:
        assert (await program.evaluate(status)).endswith("'0']")


@root
@linux
@leaves_nothing_behind
async def test_a_child_runs_as_another_user() -> None:
    account = pwd.getpwnam("nobody")
    shell = "echo $(id -u) $(id -g) $(id -G) $HOME $USER; cat /proc/$PPID/environ | wc -c"
    argv, sandbox = ["sh", "-c", shell], SandboxSettings(user="nobody")
    child = await ChildProcess.start(argv, cwd="/", sandbox=sandbox)
    ids = f"{account.pw_uid} {account.pw_gid} {account.pw_gid}"
    assert await child.receive() == f"{ids} {account.pw_dir} nobody".encode()
    assert await child.receive() == b"0"
    await child.aclose()
    child = await ChildProcess.start(["id", "-u"], cwd="/", sandbox=SandboxSettings(user="64999"))
    assert await child.receive() == b"64999"
    await child.aclose()


@root
@linux
@leaves_nothing_behind
async def test_another_user_does_not_start_in_a_folder_that_it_cannot_reach(
    tmp_path: Path,
) -> None:
    # The last folder is open to all, and the one above it to the gateway only.
    folder = tmp_path / "private" / "inner"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    settings = SandboxSettings(user="nobody")
    assert settings.default_folder(folder) == Path("/")
    with pytest.raises(ChildStartError, match="the user cannot enter the working directory"):
        await ChildProcess.start(["cat"], cwd=folder, sandbox=settings)
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        inner = Path(parent)
        inner.chmod(0o711)
        assert settings.default_folder(inner) == inner
        os.chown(inner, 0, pwd.getpwnam("nobody").pw_gid)
        inner.chmod(0o701)
        assert settings.default_folder(inner) == Path("/")
    assert settings.default_folder(tmp_path / "absent") == Path("/")
    assert SandboxSettings(user="no-such-user").default_folder(folder) == folder
    assert SandboxSettings().default_folder(folder) == folder


@linux
@leaves_nothing_behind
async def test_the_user_of_the_gateway_itself_may_be_named() -> None:
    for name in (str(os.geteuid()), pwd.getpwuid(os.geteuid()).pw_name):
        child = await ChildProcess.start(["id", "-u"], sandbox=SandboxSettings(user=name))
        assert await child.receive() == str(os.geteuid()).encode()
        await child.aclose()


@linux
@leaves_nothing_behind
async def test_a_server_has_no_more_processes_than_its_limit() -> None:
    shell = "for i in 1 2 3 4 5 6 7 8; do sleep 30 & done; echo all"
    # The kernel does not limit the processes of root.
    sandbox = SandboxSettings(user="64998" if IS_ROOT else None, processes=4)
    child = await ChildProcess.start(["sh", "-c", shell], cwd="/", sandbox=sandbox)
    assert await child.receive() is None
    assert "fork" in " ".join(child.stderr_tail()).lower()
    await child.aclose()


@leaves_nothing_behind
async def test_a_sandboxed_child_inherits_no_file_no_signal_and_a_clean_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_SECRET", "s")
    settings = SandboxSettings(no_new_privs=sys.platform == "linux")
    async with sandboxed(settings, A="b") as program:
        assert (
            await program.evaluate("sorted(map(int, os.listdir('/proc/self/fd')))[:-1]")
            == "[0, 1, 2]"
        )
        assert (
            await program.evaluate("os.environ.get('MY_SECRET'), os.environ['A']") == "(None, 'b')"
        )
        ignored = "[l.split()[1] for l in open('/proc/self/status') if l.startswith('SigBlk')]"
        assert await program.evaluate(ignored) == "['0000000000000000']"


@linux
@leaves_nothing_behind
async def test_descendants_of_a_sandboxed_child_are_ended(tmp_path: Path) -> None:
    code = "sign('child')\nif os.fork() == 0: os.setsid(); sign('stray'); deaf(); stay()\nstay()"
    async with open_life_signs(tmp_path) as signs:
        sandbox = SandboxSettings(memory_mib=256)
        child = await ChildProcess.start(
            script(code), env=signs.env, sandbox=sandbox, exit_timeout=0.2
        )
        await signs.signed(2)
        await child.aclose()
        await signs.ended()


# What cannot be enforced


@linux
@leaves_nothing_behind
async def test_without_bubblewrap_and_landlock_files_are_not_silently_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "landlock_abi", lambda: 0)
    for settings, key in (
        (SandboxSettings(read_only=("/data",)), "read_only"),
        (SandboxSettings(writable=()), "writable"),
    ):
        error = await start_error(settings)
        assert f"cannot start 'cat': sandbox.{key}: bubblewrap is not installed" in error
        assert "no Landlock of version 3; install bubblewrap" in error
        assert error.endswith("or remove the setting")


@linux
@leaves_nothing_behind
async def test_without_bubblewrap_and_seccomp_the_network_is_not_silently_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "can_filter_sockets", lambda: False)
    error = await start_error(SandboxSettings(network=False))
    assert "sandbox.network: bubblewrap is not installed, and seccomp filters" in error


@linux
@leaves_nothing_behind
async def test_a_bubblewrap_that_does_not_work_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox, "find_bubblewrap", lambda: str(broken))
    monkeypatch.setattr(sandbox, "landlock_abi", lambda: 0)
    error = await start_error(SandboxSettings(read_only=()))
    assert "does not work here (bwrap: No permissions to create new namespace)" in error


@landlock
@leaves_nothing_behind
async def test_landlock_refuses_a_read_only_path_in_a_writable_one(tmp_path: Path) -> None:
    settings = SandboxSettings(read_only=(f"{tmp_path}/a",), writable=(str(tmp_path),))
    error = await start_error(settings)
    assert f"sandbox.read_only: '{tmp_path}/a' is in a writable folder" in error


@leaves_nothing_behind
async def test_only_root_changes_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 64998)
    error = await start_error(SandboxSettings(user="root"))
    assert "sandbox.user: only root can start a program as user 'root'; run the gateway as" in error


@leaves_nothing_behind
async def test_an_unknown_user_is_reported() -> None:
    error = await start_error(SandboxSettings(user="no-such-user"))
    assert "sandbox.user: there is no user 'no-such-user'; create the user" in error


@root
@linux
@leaves_nothing_behind
async def test_the_processes_of_root_cannot_be_limited() -> None:
    error = await start_error(SandboxSettings(processes=8))
    assert "sandbox.processes: the kernel does not limit the processes of root; set user" in error


@leaves_nothing_behind
async def test_on_other_systems_linux_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    for settings, key in (
        (SandboxSettings(), "no_new_privs"),
        (SandboxSettings(no_new_privs=False, memory_mib=64), "memory_mib"),
        (SandboxSettings(no_new_privs=False, processes=64), "processes"),
    ):
        assert f"sandbox.{key}: it can be enforced on Linux only" in await start_error(settings)


@landlock
@leaves_nothing_behind
async def test_hidden_programs_and_folders_and_missing_paths_are_reported(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    error = await start_error(SandboxSettings(read_only=()), str(program))
    assert f"the sandbox hides the program '{program}'; add '{tmp_path}' to sandbox" in error
    error = await start_error(SandboxSettings(read_only=(f"{tmp_path}/none",)))
    assert f"sandbox.read_only: there is no '{tmp_path}/none'; create it" in error
    with pytest.raises(ChildStartError, match="hides the working directory"):
        await ChildProcess.start(["cat"], cwd=tmp_path, sandbox=SandboxSettings(writable=()))


@linux
@leaves_nothing_behind
async def test_a_sandboxed_command_that_does_not_exist_is_reported_as_without_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "there is no such command; is it installed" in await start_error(
        SandboxSettings(), "no-such-command"
    )
    (tmp_path / "file").touch()
    error = await start_error(SandboxSettings(), f"{tmp_path}/file")
    assert "it is not executable" in error


def test_a_hidden_default_folder_becomes_the_root_folder(tmp_path: Path) -> None:
    assert SandboxSettings().default_folder(tmp_path) == tmp_path
    assert SandboxSettings(read_only=PYTHON).default_folder(tmp_path) == Path("/")
    assert (
        SandboxSettings(writable=(str(tmp_path),)).default_folder(tmp_path / "a") == tmp_path / "a"
    )
