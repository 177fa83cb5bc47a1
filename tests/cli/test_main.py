"""The way from arguments to a command: short for clients, by typer for people."""

import subprocess
import sys
from pathlib import Path

import pytest

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
def test_what_clients_pass_is_read_without_typer(arguments: str, config: str | None) -> None:
    found = cli.plain_serve(arguments.split())
    assert found is not None
    assert found.config == (None if config is None else Path(config))
    assert found.stdio == ("--stdio" in arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "check", "serve --help", "serve --config", "serve --config --stdio"),
        *("serve x --stdio", "serve --http 127.0.0.1:8080"),
    ],
)
def test_all_else_is_left_to_typer(arguments: str) -> None:
    assert cli.plain_serve(arguments.split()) is None


def test_both_ways_lead_to_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Path | None] = []

    def serve(config: Path | None, stdio: bool, address: str | None = None) -> int:
        assert (stdio, address) == (False, None)
        served.append(config)
        return 0

    def nothing(arguments: object) -> None: ...

    monkeypatch.setattr("trunkline.cli.serve.serve", serve)
    assert cli.main(["serve", "--config", "a.toml"]) == 0
    monkeypatch.setattr(cli, "plain_serve", nothing)
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", "--config", "a.toml"])
    assert caught.value.code == 0
    assert served == [Path("a.toml")] * 2


def test_the_version_is_printed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"trunkline {__version__}\n"


def imported(program: str) -> set[str]:
    """Return the modules that a program imports, in a process of its own."""
    program = f"import sys\n{program}\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return set(done.stdout.split())


def test_a_client_never_waits_for_what_only_others_need() -> None:
    found = imported("import trunkline.cli, trunkline.cli.serve")
    assert not found & {"typer", "rich", "pydantic", "click", "websockets", "httptools", "uvloop"}
    ours = {name for name in found if name.startswith(("trunkline.transports", "trunkline.back"))}
    assert ours == {
        "trunkline.backends",
        "trunkline.backends.functions",
        "trunkline.backends.verdicts",
        "trunkline.transports",
        "trunkline.transports.departures",
        "trunkline.transports.exchange",
        "trunkline.transports.launch",
        "trunkline.transports.stdio",
        "trunkline.transports.stream",
        "trunkline.transports.warden",
    }
