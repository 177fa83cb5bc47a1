"""The command line: parses arguments, runs a command, and reports how it went.

    main ──> serve                  when a client starts it: the fastest path
         └─> program (typer) ──> all commands, each imported when it runs

Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration. Results go to stdout,
everything else to stderr.
"""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from trunkline import __version__
from trunkline.process_access import adopt_orphans, hide_secrets, set_process_name
from trunkline.stdio.orphan_reaper import TOKEN_VARIABLE, kill_children


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments`; return the exit code, or raise SystemExit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Without typer, which is slow to import.
    if list(arguments) == ["--version"]:
        print(f"trunkline {__version__}")
        return 0
    # All packages of the gateway are installed together, so it is enough to look for one of them.
    if PathFinder.find_spec("typer") is None:
        print(
            "trunkline: the packages of the gateway are not installed; "
            "install them: pip install trunkline",
            file=sys.stderr,
        )
        return 1
    with _protected_process():
        plain = parse_plain_serve(arguments)
        if plain is not None:
            from trunkline.cli.serve import serve  # noqa: PLC0415  other commands do not need it

            return serve(plain.config, plain.stdio)
        from trunkline.cli.program import program  # noqa: PLC0415  imports typer, which is slow

        program(args=list(arguments), prog_name="trunkline")
        return 0


@contextmanager
def _protected_process() -> Generator[None]:
    """Protect the secrets of this process, and control sockets, from servers that it starts."""
    # They run as the same user, and could read our memory.
    hide_secrets(keep=(TOKEN_VARIABLE,))
    # Control sockets refuse descendants of a process with this name, so none may get another parent
    # or outlive this process.
    set_process_name()
    adopt_orphans()
    try:
        yield
    finally:
        kill_children()


class PlainServe(NamedTuple):
    """The arguments of a `serve` that needs no typer."""

    config: Path | None
    stdio: bool = False


def parse_plain_serve(arguments: Sequence[str]) -> PlainServe | None:
    """Parse `serve [--stdio] [--config FILE]`; return None for anything else.

    Importing typer takes longer than everything else before the first answer, and a client waits
    for that. All other arguments, also invalid ones, are left to typer.
    """
    if not arguments or arguments[0] != "serve":
        return None
    config, stdio = None, False
    rest = iter(arguments[1:])
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--config":
            value = value if equals else next(rest, "")
            # The value is missing: typer reports that.
            if not value or value.startswith("-"):
                return None
            config = Path(value)
        elif argument == "--stdio":
            stdio = True
        else:
            return None
    return PlainServe(config, stdio)
