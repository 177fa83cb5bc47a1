"""The commands of `trunkline token` and `trunkline key`, and their arguments."""

import pytest
import typer

from tests.cli.samples import run
from tests.test_docs import ROOT
from trunkline.cli.identity_program import key_program, token_program

PROGRAMS = {"token": token_program, "key": key_program}
COMMANDS = {
    (name, command): found
    for name, program in PROGRAMS.items()
    for command, found in typer.main.get_group(program).commands.items()  # pyright: ignore[reportAttributeAccessIssue]
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
    done = run(*command, "--help")
    assert (done.exit_code, "Usage: " in done.stdout) == (0, True)
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    _, heading, section = text.partition(f"### `trunkline {' '.join(command)}`\n")
    assert heading
    section = section.split("\n#")[0]
    for parameter in COMMANDS[command].params:
        if parameter.opts[0].startswith("--"):
            assert f"`{parameter.opts[0]}" in section, parameter.opts[0]


@pytest.mark.parametrize(
    "arguments",
    ["token mint", "token mint --sub a", "key add", "key add ci", "key revoke", "key x"],
)
def test_bad_arguments_end_with_two(arguments: str) -> None:
    assert run(*arguments.split()).exit_code == 2
