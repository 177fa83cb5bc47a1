"""The commands and their arguments."""

import pytest

from tests.cli.samples import run
from trunkline import __version__


def test_it_says_its_version() -> None:
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"trunkline {__version__}\n")


@pytest.mark.parametrize(
    "command", ["", "serve", "check", "tools", "call", "ps", "sources", "client-config", "import"]
)
def test_every_command_explains_itself(command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.exit_code == 0
    assert "Usage: " in done.stdout


@pytest.mark.parametrize(
    "arguments",
    ["nonsense", "serve extra", "serve --tcp x", "call", "check --timeout x", "check --timeout -1"],
)
def test_bad_arguments_end_with_two_and_say_so_on_stderr(arguments: str) -> None:
    done = run(*arguments.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage: " in done.stderr


def test_no_command_is_answered_with_help() -> None:
    done = run()
    assert done.exit_code == 2
    assert "client-config" in done.output
