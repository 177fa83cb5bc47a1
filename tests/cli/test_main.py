"""`main`: a fast path for the arguments that clients use, and typer for all others."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.cli.samples import BROKEN, OPERATOR, config
from tests.tasks import HANG_TIMEOUT
from trunkline import __version__, cli


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        ("serve", None),
        ("serve --stdio", None),
        ("serve --config a.toml", "a.toml"),
        ("serve --config=a.toml --stdio", "a.toml"),
    ],
)
def test_the_arguments_that_clients_use_are_parsed_without_typer(
    arguments: str, config: str | None
) -> None:
    parsed = cli.parse_plain_serve(arguments.split())
    assert parsed is not None
    assert parsed.config == (None if config is None else Path(config))
    assert parsed.stdio == ("--stdio" in arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "check", "serve --help", "serve --config", "serve --config --stdio"),
        *("serve x --stdio", "serve --http 127.0.0.1:8080"),
    ],
)
def test_other_arguments_are_left_to_typer(arguments: str) -> None:
    assert cli.parse_plain_serve(arguments.split()) is None


def test_both_parsers_call_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path | None] = []

    def serve(config: Path | None, stdio: bool, address: str | None = None) -> int:
        assert (stdio, address) == (False, None)
        calls.append(config)
        return 0

    def no_fast_path(arguments: object) -> None: ...

    # It acts on the whole process, and this one runs other tests.
    monkeypatch.setattr(cli, "_protected_process", nullcontext)
    monkeypatch.setattr("trunkline.cli.serve.serve", serve)
    assert cli.main(["serve", "--config", "a.toml"]) == 0
    monkeypatch.setattr(cli, "parse_plain_serve", no_fast_path)
    with pytest.raises(SystemExit) as error:
        cli.main(["serve", "--config", "a.toml"])
    assert error.value.code == 0
    assert calls == [Path("a.toml")] * 2


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"trunkline {__version__}\n"


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("arguments", "output"),
    [("--version", "stdout"), ("--help", "stdout"), ("tools", "stdout"), ("tools", "stderr")],
)
def test_a_command_ends_quietly_when_the_reader_of_its_output_has_gone(
    arguments: str, output: str, buffered: bool, tmp_path: Path
) -> None:
    file = config(tmp_path, OPERATOR, BROKEN)
    read_end, write_end = os.pipe()
    os.close(read_end)
    stdout, stderr = (
        write_end if output == name else subprocess.PIPE for name in ("stdout", "stderr")
    )
    try:
        result = subprocess.run(
            [sys.executable, *([] if buffered else ["-u"]), "-m", "trunkline", arguments],
            env={**os.environ, "TRUNKLINE_CONFIG": file},
            stdout=stdout,
            stderr=stderr,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )
    finally:
        os.close(write_end)
    assert result.returncode == cli.BROKEN_PIPE_EXIT
    for text in (result.stdout or "", result.stderr or ""):
        assert not re.search("Traceback|Exception|BrokenPipe", text)


PACKAGES = tuple(f"trunkline.{name}" for name in ("backends", "endpoints", "http", "stdio"))


def imported(program: str) -> set[str]:
    """Return the modules that a program imports; it runs in its own process."""
    program = f"import sys\n{program}\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=True
    )
    return set(result.stdout.split())


def test_serve_imports_only_the_modules_it_needs() -> None:
    modules = imported("import trunkline.cli, trunkline.cli.serve")
    assert not modules & {"typer", "rich", "pydantic", "click", "websockets", "httptools", "uvloop"}
    own_modules = {name for name in modules if name.startswith(PACKAGES)}
    assert own_modules == {
        "trunkline.backends",
        "trunkline.backends.kind",
        "trunkline.backends.command",
        "trunkline.backends.url",
        "trunkline.backends.builtin",
        "trunkline.backends.functions",
        "trunkline.backends.era_cache",
        "trunkline.backends.limits",
        "trunkline.endpoints",
        "trunkline.endpoints.auth",
        "trunkline.http",
        "trunkline.http.address",
        "trunkline.http.exchange",
        "trunkline.stdio",
        "trunkline.stdio.child",
        "trunkline.stdio.stderr_log",
        "trunkline.stdio.stream",
        "trunkline.stdio.orphan_reaper",
        "trunkline.stdio.sandbox",
        "trunkline.stdio.sandbox_launcher",
    }
