"""The commands of `trunkline sources` and their arguments."""

import pytest
import typer

from tests.cli.samples import run
from tests.test_docs import ROOT
from trunkline.cli.sources_program import sources_program

COMMANDS = typer.main.get_group(sources_program).commands  # pyright: ignore[reportAttributeAccessIssue]


def test_all_that_a_curator_does_is_there() -> None:
    assert sorted(COMMANDS) == ["add", "keygen", "match", "sign", "validate", "verify"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_has_its_place_in_the_manual(command: str) -> None:
    done = run("sources", command, "--help")
    assert (done.exit_code, "Usage: " in done.stdout) == (0, True)
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    _, heading, section = text.partition(f"### `trunkline sources {command}`\n")
    assert heading
    section = section.split("\n#")[0]
    for parameter in COMMANDS[command].params:
        if parameter.opts[0].startswith("--"):
            assert f"`{parameter.opts[0]}" in section, parameter.opts[0]


@pytest.mark.parametrize("arguments", ["match", "add a.json", "match x --threshold 2", "nonsense"])
def test_bad_arguments_end_with_two(arguments: str) -> None:
    assert run("sources", *arguments.split()).exit_code == 2
