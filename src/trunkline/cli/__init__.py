"""The command line: reads arguments, has `app` do it, and says plainly how it went.

    main ──> serve                  as clients start it, by the shortest way
         └─> program (typer) ──> every command, each in a module of its own

Exit codes: 0 when all went well, 1 when something did not work, 2 for arguments or a configuration
that make no sense. stdout has what was asked for; all else is on stderr.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trunkline import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name; return the exit code, or raise SystemExit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"trunkline {__version__}")
        return 0
    plain = plain_serve(arguments)
    if plain is not None:
        from trunkline.cli.serve import serve  # noqa: PLC0415  others do not need it

        return serve(plain.config, plain.stdio)
    from trunkline.cli.program import program  # noqa: PLC0415  it takes longer than all the rest

    program(args=list(arguments), prog_name="trunkline")
    return 0


class Plain(NamedTuple):
    """A `serve` that needs no help with its arguments."""

    config: Path | None
    stdio: bool = False


def plain_serve(arguments: Sequence[str]) -> Plain | None:
    """Read what clients pass: `serve`, `--stdio`, `--config FILE`; None if there is more to it.

    Reading arguments with typer takes longer than all else until the first answer, and a client
    waits for that. What is not read here, wrong arguments above all, is left to typer.
    """
    if not arguments or arguments[0] != "serve":
        return None
    config, stdio = None, False
    rest = iter(arguments[1:])
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--config":
            value = value if equals else next(rest, "")
            if not value or value.startswith("-"):
                return None
            config = Path(value)
        elif argument == "--stdio":
            stdio = True
        else:
            return None
    return Plain(config, stdio)
