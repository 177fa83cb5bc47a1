"""The commands of `trunkline token` and `trunkline key`, and their arguments."""

import pytest

from tests.cli.samples import commands_of, expect_explained, run
from trunkline.cli.identity_program import key_program, token_program

PROGRAMS = {"token": token_program, "key": key_program}
COMMANDS = {
    (name, command): found
    for name, program in PROGRAMS.items()
    for command, found in commands_of(program).items()
}


def test_all_that_an_operator_does_is_there() -> None:
    assert sorted(COMMANDS) == [
        *(("key", "add"), ("key", "list"), ("key", "revoke")),
        *(("token", "inspect"), ("token", "mint")),
    ]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_has_its_place_in_the_manual(
    command: tuple[str, str],
) -> None:
    expect_explained(COMMANDS[command], *command)


@pytest.mark.parametrize(
    "arguments",
    ["token mint", "token mint --sub a", "key add", "key add ci", "key revoke", "key x"],
)
def test_bad_arguments_end_with_two(arguments: str) -> None:
    assert run(*arguments.split()).exit_code == 2
