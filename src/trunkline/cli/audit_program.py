"""The commands of `trunkline audit` and their arguments; what they do is in `audit`."""

from typing import Annotated

import typer

from trunkline.cli.options import Config, Json

audit_program = typer.Typer(
    help="Ask the journal: what was called, by whom, and how it went; and whether it is whole.",
    no_args_is_help=True,
)

Tool = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Calls of this tool, prompt or URI; * and ? may vary."),
]
Subject = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="What this one did; * and ? may vary.")
]
Server = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="What went to this server; * and ? may vary.")
]
Status = Annotated[
    list[str] | None,
    typer.Option(metavar="STATUS", help="What ended so; may be given several times."),
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Not before this: 15m, 1h, 7d, or ISO 8601.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before this.")]


@audit_program.command()
def query(
    *,
    tool: Tool = None,
    subject: Subject = None,
    server: Server = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="How many, the newest.")
    ] = 100,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what was recorded, the newest last."""
    from trunkline.cli.audit import Wanted, query  # noqa: PLC0415

    query(config, Wanted(tool, subject, server, tuple(status or ()), since, until), limit, json)


@audit_program.command()
def verify(
    expect: Annotated[
        str | None,
        typer.Option(metavar="NUMBER:HASH", help="An end of the chain that you noted earlier."),
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Walk the chain of records, and find what is missing, altered or moved."""
    from trunkline.cli.audit import verify  # noqa: PLC0415

    verify(config, expect, json)


@audit_program.command()
def export(
    *,
    tool: Tool = None,
    subject: Subject = None,
    server: Server = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="As they are stored and hashed, many calls in one.")
    ] = False,
    config: Config = None,
) -> None:
    """Print records as lines of JSON, oldest first, with their numbers and hashes."""
    from trunkline.cli.audit import Wanted, export  # noqa: PLC0415

    export(config, Wanted(tool, subject, server, tuple(status or ()), since, until), stored)
