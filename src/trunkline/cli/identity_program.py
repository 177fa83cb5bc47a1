"""The commands of `trunkline token` and `trunkline key`; what they do is in `token` and `key`."""

from typing import Annotated

import typer

from trunkline.cli.options import Config, Json

token_program = typer.Typer(
    help="Make tokens (JWT) for callers, and look into them.", no_args_is_help=True
)
key_program = typer.Typer(
    help="Give out keys to callers, list and revoke them.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What the key is called, for ever.")]
Roles = Annotated[
    list[str], typer.Option("--role", metavar="ROLE", help="A role; may be repeated.")
]


@token_program.command()
def mint(
    sub: Annotated[str, typer.Option(metavar="SUBJECT", help="Whom the token is for.")],
    role: Roles,
    ttl: Annotated[
        str, typer.Option(metavar="DURATION", help="For how long: 90s, 15m, 12h, 30d.")
    ] = "1h",
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="A scope; may be repeated.")
    ] = None,
    config: Config = None,
) -> None:
    """Print a token, signed by the secret that the configuration names."""
    from trunkline.cli.token import mint  # noqa: PLC0415

    mint(config, sub, tuple(role), ttl, tuple(scope or ()))


@token_program.command()
def inspect(
    token: Annotated[
        str | None, typer.Argument(metavar="[TOKEN]", help="The token; from stdin if left out.")
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what a token says, and whether it would be accepted; of a key, whose it is."""
    from trunkline.cli.token import inspect  # noqa: PLC0415

    inspect(config, token, json)


@key_program.command()
def add(
    name: Name,
    role: Roles,
    subject: Annotated[
        str | None, typer.Option(metavar="SUBJECT", help="Whom it is for; NAME unless set.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="When it ends: 30d, or 2027-01-31.")
    ] = None,
    config: Config = None,
) -> None:
    """Make a key, and print it once."""
    from trunkline.cli.key import add  # noqa: PLC0415

    add(config, name, tuple(role), subject, expires)


@key_program.command()
def revoke(name: Name, config: Config = None) -> None:
    """Make a key worth nothing, at once."""
    from trunkline.cli.key import revoke  # noqa: PLC0415

    revoke(config, name)


@key_program.command("list")
def list_keys(config: Config = None, json: Json = False) -> None:
    """List all keys, those that were revoked as well."""
    from trunkline.cli.key import list_keys  # noqa: PLC0415

    list_keys(config, json)
