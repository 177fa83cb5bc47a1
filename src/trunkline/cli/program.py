"""The command line as typer reads it; the commands themselves are in other modules.

Each command imports its module when it runs, so that none pays for the imports of another.
"""

from pathlib import Path
from typing import Annotated

import typer

from trunkline import __version__
from trunkline.cli.command_groups import (
    ConfigOption,
    JsonOption,
    TimeoutOption,
    audit_program,
    explain,
    key_program,
    policy_program,
    sources_program,
    tail,
    token_program,
    webhooks_program,
)

# Headings in the output of --help, in this order.
_START = "Set up and serve"
_SERVERS = "Servers in the configuration"
_TOOLS = "Tools"
_GATEWAYS = "Running gateways"
_ACCESS = "Who may do what"
_AUDIT = "What happened"
_SOURCES = "Curated sources"

program = typer.Typer(
    help="A governed MCP gateway: every MCP server behind one address.\n\n"
    "First steps: `trunkline import --write trunkline.toml` collects the servers of your MCP "
    "clients, `trunkline check` starts each of them once, and "
    "`trunkline serve --http 127.0.0.1:8080` serves them.",
    no_args_is_help=True,
    add_completion=False,
    # A formatted traceback may show local variables, which may hold secrets.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration. "
    "`trunkline COMMAND --help` explains a command.",
)

PidOption = Annotated[
    int | None,
    typer.Option(
        metavar="PID", help="Only the gateway with this process id, as `trunkline ps` shows it."
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="All running gateways of this user.")]
TargetArgument = Annotated[
    str, typer.Argument(metavar="WHAT", help="One of: tool, server, subject, all.")
]
TargetNameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="Its name, or for tools a pattern with * and ?. Not with `all`."
    ),
]
AsOption = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="NAME",
        help="The caller: a subject, or the name of an API key. Default: you, the local user.",
    ),
]
RoleOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE",
        help="A role of the caller; may be repeated. Default: the roles of the API key.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"trunkline {__version__}")
        raise typer.Exit


@program.callback()
def options(
    version: Annotated[
        bool,
        # Eager: before typer complains that the command is missing.
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Handle options that precede a command."""


@program.command(rich_help_panel=_START)
def serve(
    config: ConfigOption = None,
    stdio: Annotated[
        bool,
        # The backslash: help texts are rich markup, in which brackets are styles.
        typer.Option(
            "--stdio", help="Serve stdin and stdout. Default if \\[http] listen is not set."
        ),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve HTTP at this address instead of \\[http] listen. With --stdio, serve both.",
        ),
    ] = None,
) -> None:
    """Serve MCP clients over stdio or HTTP, until SIGINT, SIGTERM or the end of stdin."""
    from trunkline.cli.serve import serve  # noqa: PLC0415

    serve(config, stdio, http)


@program.command(rich_help_panel=_START)
def check(
    config: ConfigOption = None, json: JsonOption = False, timeout: TimeoutOption = None
) -> None:
    """Check the configuration: start every server once, and report what works."""
    from trunkline.cli.check import run_check  # noqa: PLC0415

    run_check(config, json, timeout)


@program.command(rich_help_panel=_TOOLS)
def tools(
    server: Annotated[
        str | None, typer.Argument(metavar="[SERVER]", help="List only the tools of this server.")
    ] = None,
    *,
    subject: AsOption = "",
    role: RoleOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """List the tools of all servers, or of one."""
    from trunkline.cli.catalog import ToolOptions  # noqa: PLC0415
    from trunkline.cli.identities import IdentityOptions  # noqa: PLC0415
    from trunkline.cli.tools import run_tools  # noqa: PLC0415

    identity = IdentityOptions(subject, tuple(role or ()))
    run_tools(server, ToolOptions(config, json, timeout, identity))


@program.command(rich_help_panel=_TOOLS)
def call(
    name: Annotated[
        str, typer.Argument(metavar="TOOL", help="The tool, as `trunkline tools` shows it.")
    ],
    arguments: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="The arguments, as a JSON object.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="One argument; may be repeated. VALUE is read as JSON, otherwise as text.",
        ),
    ] = None,
    *,
    subject: AsOption = "",
    role: RoleOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Maximum time for all. Default: start_timeout and timeout of the server.",
        ),
    ] = None,
) -> None:
    """Call a tool through the gateway, and print its result."""
    from trunkline.cli.call import parse_arguments, run_call  # noqa: PLC0415
    from trunkline.cli.catalog import ToolOptions  # noqa: PLC0415
    from trunkline.cli.identities import IdentityOptions  # noqa: PLC0415

    identity = IdentityOptions(subject, tuple(role or ()))
    options = ToolOptions(config, json, timeout, identity)
    run_call(name, parse_arguments(arguments, arg or ()), options)


@program.command(rich_help_panel=_TOOLS)
def find(
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help='What the tool should do: "create a pull request".'),
    ],
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=50, help="How many tools to show.")
    ] = 5,
    *,
    subject: AsOption = "",
    role: RoleOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """Find tools by what they do, best match first."""
    from trunkline.cli.catalog import ToolOptions  # noqa: PLC0415
    from trunkline.cli.identities import IdentityOptions  # noqa: PLC0415
    from trunkline.cli.tools import run_find  # noqa: PLC0415

    identity = IdentityOptions(subject, tuple(role or ()))
    run_find(query, limit, ToolOptions(config, json, timeout, identity))


ServerArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The server, as `trunkline list` shows it.")
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Show how the file would change; change and start nothing."),
]


@program.command(rich_help_panel=_SERVERS)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A new name for the server.")],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="URL|COMMAND", help="A URL, or `--` and a command with its arguments."
        ),
    ],
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="KEY=VALUE",
            help="An environment variable of the command; may be repeated.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME:VALUE",
            help="A header of requests to the URL; may be repeated.",
        ),
    ] = None,
    *,
    config: ConfigOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Add the server even if it does not start.")
    ] = False,
    dry_run: DryRunOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """Start a server once, and add it to the configuration file.

    A command: `trunkline add fs -- npx -y @modelcontextprotocol/server-filesystem /data`

    A URL: `trunkline add linear https://mcp.linear.app/mcp`
    """
    from trunkline.cli.edit_servers import NewServer, run_add  # noqa: PLC0415

    server = NewServer(name, tuple(words), tuple(env or ()), tuple(header or ()))
    run_add(server, config, timeout, force=force, dry_run=dry_run)


@program.command(rich_help_panel=_SERVERS)
def remove(
    name: ServerArgument, config: ConfigOption = None, dry_run: DryRunOption = False
) -> None:
    """Remove a server from the configuration file."""
    from trunkline.cli.edit_servers import run_remove  # noqa: PLC0415

    run_remove(name, config, dry_run=dry_run)


@program.command(rich_help_panel=_SERVERS)
def enable(
    name: ServerArgument, config: ConfigOption = None, dry_run: DryRunOption = False
) -> None:
    """Enable a disabled server in the configuration file."""
    from trunkline.cli.edit_servers import run_enable  # noqa: PLC0415

    run_enable(name, config, disabled=False, dry_run=dry_run)


@program.command(rich_help_panel=_SERVERS)
def disable(
    name: ServerArgument, config: ConfigOption = None, dry_run: DryRunOption = False
) -> None:
    """Disable a server, but keep it in the configuration file."""
    from trunkline.cli.edit_servers import run_enable  # noqa: PLC0415

    run_enable(name, config, disabled=True, dry_run=dry_run)


@program.command("list", rich_help_panel=_SERVERS)
def list_servers(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the servers of the configuration without starting them."""
    from trunkline.cli.edit_servers import run_list  # noqa: PLC0415

    run_list(config, json)


@program.command(rich_help_panel=_GATEWAYS)
def ps(json: JsonOption = False) -> None:
    """Show the running gateways of this user, and the state of each server."""
    from trunkline.cli.gateways import run_ps  # noqa: PLC0415

    run_ps(json)


@program.command(rich_help_panel=_GATEWAYS)
def logs(
    server: Annotated[
        str, typer.Argument(metavar="SERVER", help="The server, as `trunkline ps` shows it.")
    ],
    pid: PidOption = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many lines to show.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines as they come, until Ctrl-C.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show what a server of a running gateway wrote to stderr."""
    from trunkline.cli.logs import run_logs  # noqa: PLC0415

    run_logs(server, pid, lines, follow, json)


@program.command(rich_help_panel=_GATEWAYS)
def reload(
    pid: PidOption = None,
    json: JsonOption = False,
) -> None:
    """Make the running gateways of this user reload their configuration."""
    from trunkline.cli.gateways import run_reload  # noqa: PLC0415

    run_reload(pid, json)


@program.command(rich_help_panel=_GATEWAYS)
def status(pid: PidOption = None, json: JsonOption = False) -> None:
    """Show kill switches, pauses and problems of the running gateways."""
    from trunkline.cli.gateways import run_status  # noqa: PLC0415

    run_status(pid, json)


@program.command(rich_help_panel=_GATEWAYS)
# No --all: `pause` and `kill` go to all gateways anyway.
def pause(pid: PidOption = None, json: JsonOption = False) -> None:
    """Refuse all new calls until `trunkline resume`; calls in flight continue."""
    from trunkline.cli.gateways import GatewaySelection, run_pause  # noqa: PLC0415

    run_pause(GatewaySelection(pid), json)


@program.command(rich_help_panel=_GATEWAYS)
def resume(pid: PidOption = None, every: AllOption = False, json: JsonOption = False) -> None:
    """Allow calls again after `trunkline pause`."""
    from trunkline.cli.gateways import GatewaySelection, run_resume  # noqa: PLC0415

    run_resume(GatewaySelection(pid, every), json)


@program.command(rich_help_panel=_GATEWAYS)
def kill(
    what: TargetArgument,
    name: TargetNameArgument = None,
    pid: PidOption = None,
    json: JsonOption = False,
) -> None:
    """Disable a tool, a server, a subject or everything until `trunkline revive`."""
    from trunkline.cli.gateways import GatewaySelection, run_kill  # noqa: PLC0415

    run_kill(what, name, GatewaySelection(pid), json)


@program.command(rich_help_panel=_GATEWAYS)
def revive(
    what: TargetArgument,
    name: TargetNameArgument = None,
    pid: PidOption = None,
    every: AllOption = False,
    json: JsonOption = False,
) -> None:
    """Enable again what `trunkline kill` disabled."""
    from trunkline.cli.gateways import GatewaySelection, run_revive  # noqa: PLC0415

    run_revive(what, name, GatewaySelection(pid, every), json)


@program.command("client-config", rich_help_panel=_START)
def client_config(
    client: Annotated[
        str,
        typer.Argument(
            metavar="CLIENT",
            help="One of: claude-desktop, claude-code, cursor, vscode, windsurf, zed, codex, "
            "gemini-cli, cline, roo-code.",
        ),
    ],
    config: ConfigOption = None,
    *,
    stdio: Annotated[
        bool,
        typer.Option(
            "--stdio",
            help="The client starts the gateway. Default without listen and public_url of "
            "\\[http].",
        ),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The client connects to this URL. Default: from public_url or listen of \\[http].",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The settings file of the client. Default: its usual place."
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Change the settings file: add the entry, remove those it replaces."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show as a diff what --write would change.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="With --write: keep the entries that the new one replaces."),
    ] = False,
) -> None:
    """Print the entry of this gateway for an MCP client's settings, or write it there."""
    from trunkline.cli.client_config import (  # noqa: PLC0415
        ClientConfigOptions,
        run_client_config,
    )

    options = ClientConfigOptions(stdio, http, file, write, dry_run, keep)
    run_client_config(client, config, options)


@program.command("import", rich_help_panel=_START)
def import_files(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="The file of a client or gateway. Default: all clients' files."
        ),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write this file. Default: print to stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write the servers of MCP clients, or of another gateway, as one trunkline.toml."""
    from trunkline.cli.import_files import run_import  # noqa: PLC0415

    run_import(source, write, force)


program.command(
    "tail", help="Show calls as they are recorded. Short for `audit tail`.", rich_help_panel=_AUDIT
)(tail)
program.command(
    "why",
    help="Show which rule allows or denies a call. Short for `policy explain`.",
    rich_help_panel=_ACCESS,
)(explain)
program.add_typer(policy_program, name="policy", rich_help_panel=_ACCESS)
program.add_typer(key_program, name="key", rich_help_panel=_ACCESS)
program.add_typer(token_program, name="token", rich_help_panel=_ACCESS)
program.add_typer(audit_program, name="audit", rich_help_panel=_AUDIT)
program.add_typer(webhooks_program, name="webhooks", rich_help_panel=_AUDIT)
program.add_typer(sources_program, name="sources", rich_help_panel=_SOURCES)
