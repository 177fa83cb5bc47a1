"""The command line: parses arguments, runs a command, and reports how it went.

    main ──> serve                  when a client starts it: the fastest path
         └─> program (typer) ──> all commands, each imported when it runs

Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration. Results go to stdout,
everything else to stderr. If the reader of the output closes it, the command ends silently.
"""

import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple, TextIO

from trunkline import __version__
from trunkline.process_access import (
    FIRST_PROCESS,
    adopt_orphans,
    hide_secrets,
    set_default_action,
    set_process_name,
)
from trunkline.stdio.orphan_reaper import TOKEN_VARIABLE, kill_children

BROKEN_PIPE_EXIT = 141
"""The exit code if the reader closes the output: 128 + SIGPIPE, as a shell reports it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments`; return the exit code, or raise SystemExit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if os.getpid() == FIRST_PROCESS:
        # In a container. Else commands, and a gateway that is starting, would ignore SIGTERM.
        set_default_action(signal.SIGTERM)
    # Without typer, which is slow to import.
    if list(arguments) == ["--version"]:
        with _exit_on_broken_pipe():
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

        with _exit_on_broken_pipe():
            program(args=list(arguments), prog_name="trunkline")
        return 0


@contextmanager
def _exit_on_broken_pipe() -> Generator[None]:
    """Exit quietly if the reader of the output, such as `head`, has closed it."""
    # Before the command: typer replaces both when a write fails.
    outputs = (sys.stdout, sys.stderr)
    is_broken = False
    try:
        yield
    except BrokenPipeError:
        is_broken = True
    except SystemExit as error:
        # typer turns the BrokenPipeError of a command into an exit code.
        is_broken = isinstance(error.__context__, BrokenPipeError)
        if not is_broken:
            raise
    finally:
        # Small results are still in the buffer. Python would print a traceback for them at exit.
        for output in outputs:
            is_broken |= not _flush_or_discard(output)
        if is_broken:
            raise SystemExit(BROKEN_PIPE_EXIT) from None


def _flush_or_discard(output: TextIO) -> bool:
    """Write what is in the buffer; without a reader, discard it and return False."""
    try:
        if not output.closed:
            output.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, output.fileno())
        os.close(nowhere)
        return False
    return True


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
