"""Starting child processes: inheritance and error messages."""

import os
import signal
from pathlib import Path

import pytest

from tests.stdio.test_child import leaves_nothing_behind, python
from trunkline.jsonrpc import ConnectionLost
from trunkline.stdio.child import ChildProcess, ChildStartError, child_environment


def test_only_needed_variables_are_inherited() -> None:
    passed = (
        "PATH HOME LANG LC_ALL TZ https_proxy NO_PROXY npm_config_registry PIP_INDEX_URL".split()
    )
    kept_back = "AWS_SECRET_ACCESS_KEY TRUNKLINE_TOKEN LD_PRELOAD PYTHONPATH PATHX XPATH LC".split()
    secret = "npm_config__authToken UV_PUBLISH_TOKEN UV_INDEX_X_PASSWORD npm_config_key".split()
    parent = dict.fromkeys([*passed, *kept_back, *secret, "UV_KEYRING_PROVIDER"], "v")
    expected = dict.fromkeys([*passed, "UV_KEYRING_PROVIDER"], "v")
    assert child_environment(parent, {}) == expected
    assert child_environment(parent, {"PATH": "p", "MY_TOKEN": "t"}) == {
        **expected,
        "PATH": "p",
        "MY_TOKEN": "t",
    }
    assert child_environment({"LC_X": "() { :; }; echo", "HOME": "() {"}, {}) == {}


@pytest.mark.holds("M6", "O0.17")
@leaves_nothing_behind
async def test_the_environment_of_a_child_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "s")
    monkeypatch.setenv("TRUNKLINE_CHILD", "of another gateway")
    code = "import os; print(open('/proc/self/environ').read().replace('\\0', '\\n'))"
    child = await ChildProcess.start(python(code), env={"A": "b"})
    seen: dict[str, str] = {}
    while (line := await child.receive()) is not None:
        name, _, seen[name] = line.decode().partition("=")
    token = seen.pop("TRUNKLINE_CHILD")
    assert len(token) == 32
    assert seen == child_environment(os.environ, {"A": "b"})
    assert not {"MY_SECRET", "PYTEST_CURRENT_TEST"} & set(seen)
    await child.aclose()


@leaves_nothing_behind
async def test_a_child_inherits_no_file_and_no_signal() -> None:
    code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], flush=True); "
    code += "os.kill(os.getpid(), 15); input()"
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    file = os.dup(0)
    os.set_inheritable(file, True)
    child = await ChildProcess.start(python(code))
    os.close(file)
    signal.signal(signal.SIGTERM, before)
    assert await child.receive() == b"[0, 1, 2]"
    assert await child.wait() == -signal.SIGTERM
    await child.aclose()


@leaves_nothing_behind
async def test_a_child_runs_in_the_given_directory(tmp_path: Path) -> None:
    for cwd in (tmp_path, str(tmp_path)):
        child = await ChildProcess.start(["pwd"], cwd=cwd)
        assert await child.receive() == str(tmp_path).encode()
        await child.aclose()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-command", r"'no-such-command': .* is it installed, and on PATH\?"),
        ("./no-such-file", r"there is no such file; is the path right, and absolute\?$"),
        ("npx -y foo", r"on PATH\? Put its arguments into args$"),
        ("./run it", r"absolute\? Put its arguments into args$"),
        ("./not-executable", r"it is not executable; .*chmod \+x"),
        ("./directory", r"it is not executable"),
        ("./no-interpreter", "first line does not exist; is it installed"),
        ("./no-first-line", "not a program for this machine; .*#!/bin/sh"),
        ("nul\0", "null byte; check"),
        ("", "expected a command, got none"),
    ],
)
@leaves_nothing_behind
async def test_a_failed_start_says_why_and_how_to_fix_it(
    command: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "directory").mkdir()
    for name, content in {
        "not-executable": "#!/bin/sh\n",
        "no-interpreter": "#!/no/such/interpreter\n",
        "no-first-line": "echo\n",
    }.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o644 if name == "not-executable" else 0o755)
    with pytest.raises(ChildStartError, match=message) as failure:
        await ChildProcess.start([command, "secret"] if command else [], cwd=tmp_path)
    assert isinstance(failure.value, ConnectionLost)
    assert failure.value.argv0 == command
    assert "secret" not in str(failure.value)


@leaves_nothing_behind
async def test_a_directory_that_does_not_exist_is_not_blamed_on_the_command() -> None:
    with pytest.raises(ChildStartError, match="'cat': there is no directory '/no/such'; create it"):
        await ChildProcess.start(["cat"], cwd="/no/such")
