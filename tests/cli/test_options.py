"""Options of many commands."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from trunkline.cli.program import program


def parameters(group: Any) -> Iterator[Any]:
    """Return the options and arguments of all commands, at any depth."""
    for command in group.commands.values():
        yield from command.params
        if hasattr(command, "commands"):
            yield from parameters(command)


@pytest.mark.parametrize("option", ["--config", "--json"])
def test_an_option_of_many_commands_is_explained_the_same_everywhere(option: str) -> None:
    found = [each for each in parameters(typer.main.get_group(program)) if option in each.opts]
    assert len(found) > 15
    assert len({each.help for each in found}) == 1
