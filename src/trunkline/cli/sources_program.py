"""The commands of `trunkline sources` and their arguments; what they do is in `sources`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from trunkline.cli.options import Json

sources_program = typer.Typer(
    help="Curate a registry of sources: three for each topic, with provenance.",
    no_args_is_help=True,
)

Registry = Annotated[Path, typer.Argument(metavar="REGISTRY", help="The file: JSON, or TOML.")]
Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="The file of your private key.")]


@sources_program.command()
def keygen(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where the private key is to be.")
    ] = Path("sources.key"),
) -> None:
    """Make a key: the private half into a file for you alone, the public half is printed."""
    from trunkline.cli.sources import keygen  # noqa: PLC0415

    keygen(path)


@sources_program.command()
def validate(registry: Registry, json: Json = False) -> None:
    """Say whether a registry keeps all rules, and where it does not."""
    from trunkline.cli.sources import validate  # noqa: PLC0415

    validate(registry, json)


@sources_program.command()
def sign(registry: Registry, key: Key = Path("sources.key")) -> None:
    """Sign a registry, and write into its change log what is new."""
    from trunkline.cli.sources import sign  # noqa: PLC0415

    sign(registry, key)


@sources_program.command()
def verify(
    registry: Registry,
    by: Annotated[
        str | None, typer.Option(metavar="PUBKEY", help="It must be signed by this key.")
    ] = None,
    json: Json = False,
) -> None:
    """Verify the signature of a registry, and walk its change log from the beginning."""
    from trunkline.cli.sources import verify  # noqa: PLC0415

    verify(registry, by, json)


@sources_program.command()
def match(
    query: Annotated[str, typer.Argument(help="What somebody might ask.")],
    registry: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The registry; else the embedded one.")
    ] = None,
    scoring: Annotated[
        Literal["classic", "best"], typer.Option(help="How topics are compared.")
    ] = "classic",
    threshold: Annotated[
        float | None,
        typer.Option(metavar="SCORE", min=0.0, max=1.0, help="What a topic must score."),
    ] = None,
    json: Json = False,
) -> None:
    """Show which topic a question means, and how close the others are."""
    from trunkline.cli.sources import match  # noqa: PLC0415

    match(query, registry, scoring, threshold, json)


@sources_program.command()
def add(
    registry: Registry,
    slug: Annotated[str, typer.Argument(help="The new topic's slug, such as rust-learning.")],
    name: Annotated[str, typer.Option(help="Its name for people to read.")],
    description: Annotated[str, typer.Option(help="What it covers.")],
    pattern: Annotated[list[str], typer.Option(help="How people ask for it; at least three.")],
    *,
    source: Annotated[
        list[str],
        typer.Option(metavar="'TYPE|NAME|URL|WHY'", help="One of the three, the best first."),
    ],
    curator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Begin a new registry as this curator.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign it at once with this private key.")
    ] = None,
) -> None:
    """Add a topic to a registry, or begin one with it."""
    from trunkline.cli.sources import NewTopic, add  # noqa: PLC0415

    add(registry, NewTopic(slug, name, description, pattern, source), curator, key)
