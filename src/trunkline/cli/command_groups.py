"""Command groups: `sources`, `token`, `key`, `audit`, `policy`, `webhooks`; shared options.

Each command imports its module when it runs, so that none pays for the imports of another.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration: a trunkline.toml, or the JSON settings of an MCP client. "
        "Default: $TRUNKLINE_CONFIG, ./trunkline.toml, or embedded defaults.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.0,
        help="Maximum wait for servers to start. Default: the start_timeout of each.",
    ),
]

# sources

sources_program = typer.Typer(
    help="Create, sign and verify a registry of curated sources.", no_args_is_help=True
)

RegistryArgument = Annotated[
    Path, typer.Argument(metavar="REGISTRY", help="The registry, a JSON or TOML file.")
]
KeyOption = Annotated[
    Path, typer.Option("--key", metavar="FILE", help="The file with your private key.")
]


@sources_program.command()
def keygen(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write the private key.")
    ] = Path("sources.key"),
) -> None:
    """Create a key pair: write the private key to a file, print the public key."""
    from trunkline.cli.sources import run_keygen  # noqa: PLC0415

    run_keygen(path)


@sources_program.command()
def validate(registry: RegistryArgument, json: JsonOption = False) -> None:
    """Check a registry, and show every problem with its location."""
    from trunkline.cli.sources import run_validate  # noqa: PLC0415

    run_validate(registry, json)


@sources_program.command()
def sign(registry: RegistryArgument, key: KeyOption = Path("sources.key")) -> None:
    """Sign a registry, and append the changes to its change log."""
    from trunkline.cli.sources import run_sign  # noqa: PLC0415

    run_sign(registry, key)


@sources_program.command("verify")
def verify_registry(
    registry: RegistryArgument,
    by: Annotated[
        str | None, typer.Option(metavar="PUBKEY", help="The key that must have signed it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Verify the signature of a registry, and its whole change log."""
    from trunkline.cli.sources import run_verify  # noqa: PLC0415

    run_verify(registry, by, json)


@sources_program.command()
def match(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A question, as a user would ask it.")
    ],
    registry: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The registry. Default: the embedded one.")
    ] = None,
    scoring: Annotated[
        Literal["classic", "best"], typer.Option(help="How topics are scored.")
    ] = "classic",
    threshold: Annotated[
        float | None,
        typer.Option(metavar="SCORE", min=0.0, max=1.0, help="The minimum score of a match."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show which topic matches a question, with the scores of the ten best."""
    from trunkline.cli.sources import run_match  # noqa: PLC0415

    run_match(query, registry, scoring, threshold, json)


@sources_program.command("add")
def add_topic(
    registry: RegistryArgument,
    slug: Annotated[
        str, typer.Argument(metavar="SLUG", help="The slug of the topic, such as rust-learning.")
    ],
    name: Annotated[str, typer.Option(metavar="TEXT", help="The display name of the topic.")],
    description: Annotated[str, typer.Option(metavar="TEXT", help="What the topic covers.")],
    pattern: Annotated[
        list[str],
        typer.Option(metavar="TEXT", help="A question about the topic; give at least three."),
    ],
    *,
    source: Annotated[
        list[str],
        typer.Option(metavar="'TYPE|NAME|URL|WHY'", help="A source; give three, best first."),
    ],
    curator: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Create the registry, with this curator; needs --key."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign it with this private key.")
    ] = None,
) -> None:
    """Add a topic to a registry, or create a registry with it."""
    from trunkline.cli.sources import NewTopic, run_add  # noqa: PLC0415

    run_add(registry, NewTopic(slug, name, description, pattern, source), curator, key)


# token, key

token_program = typer.Typer(
    help="Create and inspect tokens (JWT) of callers.", no_args_is_help=True
)
key_program = typer.Typer(help="Create, list and revoke API keys of callers.", no_args_is_help=True)

KeyNameArgument = Annotated[
    # Principal ids contain the name, so it is never reused (docs/design/0016).
    str, typer.Argument(metavar="NAME", help="The name of the key; it cannot be used again.")
]
RolesOption = Annotated[
    list[str], typer.Option("--role", metavar="ROLE", help="A role of the caller; may be repeated.")
]


@token_program.command()
def mint(
    sub: Annotated[str, typer.Option(metavar="SUBJECT", help="The caller whom the token names.")],
    role: RolesOption,
    ttl: Annotated[
        str, typer.Option(metavar="DURATION", help="The lifetime, such as 90s, 15m, 12h or 30d.")
    ] = "1h",
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="A scope; may be repeated.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Create a token with the secret of `auth.jwt.secret_env`, and print it."""
    from trunkline.cli.credentials import run_token_mint  # noqa: PLC0415

    run_token_mint(config, sub, tuple(role), ttl, tuple(scope or ()))


@token_program.command()
def inspect(
    token: Annotated[
        str | None,
        typer.Argument(metavar="[TOKEN]", help="The token or key. Default, or with -: read stdin."),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the content of a token or the owner of an API key, and whether it is accepted."""
    from trunkline.cli.credentials import run_token_inspect  # noqa: PLC0415

    run_token_inspect(config, token, json)


@key_program.command()
def add(
    name: KeyNameArgument,
    role: RolesOption,
    subject: Annotated[
        str | None,
        typer.Option(metavar="SUBJECT", help="The subject of calls with the key. Default: NAME."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="When the key expires, such as 30d or 2027-01-31. Default: never."
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Create an API key, and print it once."""
    from trunkline.cli.credentials import run_key_add  # noqa: PLC0415

    run_key_add(config, name, tuple(role), subject, expires)


@key_program.command()
def revoke(name: KeyNameArgument, config: ConfigOption = None) -> None:
    """Revoke an API key, and close the streams that were opened with it."""
    from trunkline.cli.credentials import run_key_revoke  # noqa: PLC0415

    run_key_revoke(config, name)


@key_program.command("list")
def list_keys(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List all API keys, including revoked ones."""
    from trunkline.cli.credentials import run_key_list  # noqa: PLC0415

    run_key_list(config, json)


# audit

audit_program = typer.Typer(
    help="Read and verify the audit log: who called what, and how it ended.",
    no_args_is_help=True,
)

ToolOption = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Only this tool, prompt or URI; * and ? match any text."),
]
SubjectOption = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="Only this caller; * and ? match any text.")
]
ServerOption = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="Only this server; * and ? match any text.")
]
StatusOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STATUS", help="Only calls with this status, such as denied; may be repeated."
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Only records since then: an age such as 15m, 1h or 7d, or ISO 8601."
    ),
]
AllKindsOption = Annotated[
    bool,
    typer.Option(
        "--all", help="All records: also server states, kill switches, reloads, rejected logins."
    ),
]
UntilOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only records before then, as for --since.")
]


@audit_program.command()
def query(
    *,
    tool: ToolOption = None,
    subject: SubjectOption = None,
    server: ServerOption = None,
    status: StatusOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="Show the newest N records.")
    ] = 100,
    all_kinds: AllKindsOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show recorded calls, the newest last."""
    from trunkline.cli.audit import RecordSelection, run_query  # noqa: PLC0415

    selection = RecordSelection(
        tool, subject, server, tuple(status or ()), since, until, is_for_calls=not all_kinds
    )
    run_query(config, selection, limit, json)


@audit_program.command()
def verify(
    expect: Annotated[
        str | None,
        typer.Option(metavar="NUMBER:HASH", help="The tip that an earlier `verify` printed."),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Verify the hash chain: find missing, altered and moved records."""
    from trunkline.cli.audit import run_verify  # noqa: PLC0415

    run_verify(config, expect, json)


@audit_program.command()
def export(
    *,
    tool: ToolOption = None,
    subject: SubjectOption = None,
    server: ServerOption = None,
    status: StatusOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    stored: Annotated[
        # Excludes the selection: a filter cannot divide the calls that are stored in one row.
        bool,
        typer.Option("--stored", help="Print rows as stored and hashed; one may hold many calls."),
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Print records as lines of JSON, oldest first, with numbers and hashes."""
    from trunkline.cli.audit import RecordSelection, run_export  # noqa: PLC0415

    selection = RecordSelection(tool, subject, server, tuple(status or ()), since, until)
    run_export(config, selection, stored)


@audit_program.command()
def tail(
    *,
    tool: ToolOption = None,
    subject: SubjectOption = None,
    server: ServerOption = None,
    status: StatusOption = None,
    lines: Annotated[
        # Instead of --since and --until: records still to come have no bounds in time.
        int,
        typer.Option(metavar="N", min=0, max=1000, help="How many earlier records to show first."),
    ] = 10,
    all_kinds: AllKindsOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show calls as they are recorded, until Ctrl-C."""
    from trunkline.cli.audit import RecordSelection, run_tail  # noqa: PLC0415

    selection = RecordSelection(
        tool, subject, server, tuple(status or ()), is_for_calls=not all_kinds
    )
    run_tail(config, selection, lines, json)


# policy

policy_program = typer.Typer(
    help="Explain and test the policy without a running gateway.", no_args_is_help=True
)


@policy_program.command()
def explain(
    tool: Annotated[
        str, typer.Argument(metavar="TOOL", help="The tool, as `trunkline tools` shows it.")
    ],
    *,
    subject: Annotated[
        str,
        typer.Option("--as", metavar="NAME", help="The caller: a subject, or the name of a key."),
    ],
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE", help="A role of the caller; may be repeated. Default: those of its key."
        ),
    ] = None,
    client: Annotated[
        str,
        typer.Option(metavar="NAME", help="The name that the client of the caller gives itself."),
    ] = "",
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="The arguments, as a JSON object.")
    ] = None,
    kind: Annotated[
        Literal["tool", "prompt", "resource", "template"],
        typer.Option(help="What TOOL names."),
    ] = "tool",
    config: ConfigOption = None,
    json: JsonOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """Show whether a caller may call a tool, and which rule on which line decides."""
    from trunkline.cli.policy import parse_hypothetical_call, run_explain  # noqa: PLC0415

    call = parse_hypothetical_call(tool, kind, (subject, role or (), client), args)
    run_explain(call, config, json, timeout)


@policy_program.command("test")
def check_expectations(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A TOML file with \\[\\[expect]] tables.")
    ],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the policy with a file of expectations; exit with 1 if they differ."""
    from trunkline.cli.policy import run_policy_test  # noqa: PLC0415

    run_policy_test(file, config, json)


# webhooks

webhooks_program = typer.Typer(
    help="Show webhooks, try them, and send dead messages again.", no_args_is_help=True
)

WebhookArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a webhook in the configuration.")
]


@webhooks_program.command("list")
def list_webhooks(
    dead: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="List the dead messages of this webhook instead."),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the webhooks, and how many messages wait for each."""
    from trunkline.cli.webhooks import run_list  # noqa: PLC0415

    run_list(config, dead, json)


@webhooks_program.command("test")
def try_webhook(name: WebhookArgument, config: ConfigOption = None) -> None:
    """Send a test message from this process, and print what the receiver answers."""
    from trunkline.cli.webhooks import run_test  # noqa: PLC0415

    run_test(name, config)


@webhooks_program.command()
def retry(name: WebhookArgument, config: ConfigOption = None) -> None:
    """Switch a webhook on again, and send its dead messages once more."""
    from trunkline.cli.webhooks import run_retry  # noqa: PLC0415

    run_retry(name, config)


@webhooks_program.command()
def secret() -> None:
    """Print a new signing key for `secret_env`."""
    from trunkline.cli.webhooks import run_secret  # noqa: PLC0415

    run_secret()
