"""The `trunkline` program: its commands and their arguments."""

import pytest

from tests.cli.samples import run
from trunkline import __version__


def test_the_version_option_prints_the_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"trunkline {__version__}\n")


@pytest.mark.parametrize(
    "command", ["", "serve", "check", "tools", "call", "ps", "sources", "client-config", "import"]
)
def test_every_command_has_help(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


@pytest.mark.parametrize(
    "arguments",
    ["nonsense", "serve extra", "serve --tcp x", "call", "check --timeout x", "check --timeout -1"],
)
def test_invalid_arguments_exit_with_two_and_print_usage_on_stderr(arguments: str) -> None:
    result = run(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


def test_without_a_command_help_is_printed() -> None:
    result = run()
    assert result.exit_code == 2
    assert "client-config" in result.output
