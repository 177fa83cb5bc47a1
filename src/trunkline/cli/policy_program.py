"""The commands of `trunkline policy` and their arguments; what they do is in `policy`."""

from pathlib import Path
from typing import Annotated

import typer

from trunkline.cli.options import Config, Json

policy_program = typer.Typer(
    help="Try out who may do what, without starting anything.", no_args_is_help=True
)


@policy_program.callback()
def options() -> None:
    """Keep `test` a command of its own, though it is the only one."""


@policy_program.command("test")
def try_out(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What is expected: a TOML file.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """Compare what the policy says with what is expected; ends with 1 where they differ."""
    from trunkline.cli.policy import try_out  # noqa: PLC0415

    try_out(file, config, json)
