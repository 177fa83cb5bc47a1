"""The arguments of `trunkline audit`."""

import pytest
import typer

from tests.cli.samples import run
from tests.test_docs import ROOT
from trunkline.cli.audit_program import audit_program

COMMANDS = typer.main.get_group(audit_program).commands


def test_without_a_command_help_is_given() -> None:
    assert "verify" in run("audit").output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_in_the_manual(command: str) -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    _, found, section = text.partition(f"### `trunkline audit {command}`\n")
    assert found
    section = section.partition("\n## ")[0]
    for parameter in COMMANDS[command].params:
        assert f"`{parameter.opts[0]}" in section, parameter.opts[0]
