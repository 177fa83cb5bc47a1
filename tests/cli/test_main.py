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


@pytest.mark.parametrize(
    "arguments",
    ["", "check", "serve --help", "serve --config", "serve --config --stdio", "serve x --stdio"],
)
def test_all_else_is_left_to_typer(arguments: str) -> None:
    assert cli.plain_serve(arguments.split()) is None


def test_both_ways_lead_to_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Path | None] = []

    def serve(config: Path | None) -> int:
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


def test_a_client_never_waits_for_typer_or_rich() -> None:
    program = (
        "import sys, trunkline.cli, trunkline.cli.serve\n"
        "print([name for name in ('typer', 'rich', 'pydantic', 'click') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "[]\n"
