"""The command groups: every command is documented, and options mean the same everywhere."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tests.cli.samples import commands_of, expect_explained, run
from trunkline.cli.command_groups import (
    audit_program,
    key_program,
    policy_program,
    sources_program,
    token_program,
)
from trunkline.cli.program import program

GROUPS = {
    "audit": audit_program,
    "key": key_program,
    "policy": policy_program,
    "sources": sources_program,
    "token": token_program,
}
COMMANDS = {
    (name, command): found
    for name, group in GROUPS.items()
    for command, found in commands_of(group).items()
}


def parameters(group: Any) -> Iterator[Any]:
    """Return the options and arguments of all commands, at any depth."""
    for command in group.commands.values():
        yield from command.params
        if hasattr(command, "commands"):
            yield from parameters(command)


def test_each_group_has_its_commands() -> None:
    found = {
        name: sorted(command for group, command in COMMANDS if group == name) for name in GROUPS
    }
    assert found == {
        "audit": ["export", "query", "tail", "verify"],
        "key": ["add", "list", "revoke"],
        "policy": ["explain", "test"],
        "sources": ["add", "keygen", "match", "sign", "validate", "verify"],
        "token": ["inspect", "mint"],
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_a_place_in_the_manual(command: tuple[str, str]) -> None:
    expect_explained(COMMANDS[command], *command)


@pytest.mark.parametrize(("group", "shown"), [("audit", "verify"), ("policy", "explain")])
def test_a_group_without_a_command_prints_help(group: str, shown: str) -> None:
    assert shown in run(group).output


@pytest.mark.parametrize(("short", "long"), [("why", "policy explain"), ("tail", "audit tail")])
def test_a_short_form_takes_the_arguments_of_the_long_one(short: str, long: str) -> None:
    root: Any = typer.main.get_group(program)
    group, command = long.split()
    longer = root.commands[group].commands[command]
    assert [each.opts for each in root.commands[short].params] == [
        each.opts for each in longer.params
    ]
    assert root.commands[short].callback.__wrapped__ is longer.callback.__wrapped__
    assert f"`{long}`" in root.commands[short].help


@pytest.mark.parametrize(
    "arguments",
    [
        *("token mint", "token mint --sub a", "key add", "key add ci", "key revoke", "key x"),
        *("sources match", "sources add a.json", "sources match x --threshold 2"),
        *("sources nonsense", "policy explain", "policy explain fs__x"),
    ],
)
def test_bad_arguments_exit_with_two(arguments: str) -> None:
    assert run(*arguments.split()).exit_code == 2


@pytest.mark.parametrize("option", ["--config", "--json"])
def test_a_shared_option_has_the_same_help_everywhere(option: str) -> None:
    found = [each for each in parameters(typer.main.get_group(program)) if option in each.opts]
    assert len(found) > 15
    assert len({each.help for each in found}) == 1
