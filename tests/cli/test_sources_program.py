"""The commands of `trunkline sources` and their arguments."""

import pytest

from tests.cli.samples import commands_of, expect_explained, run
from trunkline.cli.sources_program import sources_program

COMMANDS = commands_of(sources_program)


def test_all_that_a_curator_does_is_there() -> None:
    assert sorted(COMMANDS) == ["add", "keygen", "match", "sign", "validate", "verify"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_has_its_place_in_the_manual(command: str) -> None:
    expect_explained(COMMANDS[command], "sources", command)


@pytest.mark.parametrize("arguments", ["match", "add a.json", "match x --threshold 2", "nonsense"])
def test_bad_arguments_end_with_two(arguments: str) -> None:
    assert run("sources", *arguments.split()).exit_code == 2
