"""The arguments of `trunkline audit`."""

import pytest

from tests.cli.samples import commands_of, expect_explained, run
from trunkline.cli.audit_program import audit_program

COMMANDS = commands_of(audit_program)


def test_without_a_command_help_is_given() -> None:
    assert "verify" in run("audit").output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_has_its_place_in_the_manual(command: str) -> None:
    expect_explained(COMMANDS[command], "audit", command)
