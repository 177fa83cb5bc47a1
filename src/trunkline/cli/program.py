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
)

program = typer.Typer(
    help="A governed MCP gateway: every MCP server behind one address.",
    no_args_is_help=True,
    add_completion=False,
    # A formatted traceback may show local variables, which may hold secrets.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration.",
)

PidOption = Annotated[
    int | None, typer.Option(metavar="PID", help="Only the gateway with this process id.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All of your running gateways.")]
TargetArgument = Annotated[
    str, typer.Argument(metavar="WHAT", help="tool, server, subject, or all.")
]
TargetNameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Its name; for tools also a pattern with * and ?."),
]
AsOption = Annotated[
    str,
    typer.Option(
        "--as", metavar="NAME", help="Act for this caller: a subject, or the name of a key."
    ),
]
RoleOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE", help="Act with this role; may be repeated. Default: the roles of the key."
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


@program.command()
def serve(
    config: ConfigOption = None,
    stdio: Annotated[
        bool,
        # The backslash: help texts are rich markup, in which brackets are styles.
        typer.Option("--stdio", help="Serve stdin and stdout; default without \\[http] listen."),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve HTTP at this address instead of \\[http] listen; with --stdio, both.",
        ),
    ] = None,
) -> None:
    """Serve MCP clients over stdio or HTTP, until stdin closes or a signal arrives."""
    from trunkline.cli.serve import serve  # noqa: PLC0415

    serve(config, stdio, http)


@program.command()
def check(
    config: ConfigOption = None, json: JsonOption = False, timeout: TimeoutOption = None
) -> None:
    """Check the configuration: start every server once, and report the result."""
    from trunkline.cli.check import run_check  # noqa: PLC0415

    run_check(config, json, timeout)


@program.command()
def tools(
    server: Annotated[
        str | None, typer.Argument(metavar="[SERVER]", help="Only tools of this server.")
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


@program.command()
def call(
    name: Annotated[
        str, typer.Argument(metavar="TOOL", help="The tool, as `trunkline tools` shows it.")
    ],
    arguments: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="The arguments, as a JSON object.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="One argument; VALUE is JSON or else text."),
    ] = None,
    *,
    subject: AsOption = "",
    role: RoleOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """Call a tool, and print its result."""
    from trunkline.cli.call import parse_arguments, run_call  # noqa: PLC0415
    from trunkline.cli.catalog import ToolOptions  # noqa: PLC0415
    from trunkline.cli.identities import IdentityOptions  # noqa: PLC0415

    identity = IdentityOptions(subject, tuple(role or ()))
    options = ToolOptions(config, json, timeout, identity)
    run_call(name, parse_arguments(arguments, arg or ()), options)


@program.command()
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
    bool, typer.Option("--dry-run", help="Show the change of the file, and change nothing.")
]


@program.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the server.")],
    words: Annotated[
        list[str],
        typer.Argument(metavar="URL|COMMAND", help="A URL; or -- and a command with arguments."),
    ],
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="KEY=VALUE", help="A variable of the command."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME:VALUE", help="A header for the URL."),
    ] = None,
    *,
    config: ConfigOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Add it even if it does not start.")
    ] = False,
    dry_run: DryRunOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """Start a server once, and add it to the configuration.

    Examples: `trunkline add fs -- npx -y @modelcontextprotocol/server-filesystem /data`,
    `trunkline add linear https://mcp.linear.app/mcp`.
    """
    from trunkline.cli.edit_servers import NewServer, run_add  # noqa: PLC0415

    server = NewServer(name, tuple(words), tuple(env or ()), tuple(header or ()))
    run_add(server, config, timeout, force=force, dry_run=dry_run)


@program.command()
def remove(
    name: ServerArgument, config: ConfigOption = None, dry_run: DryRunOption = False
) -> None:
    """Remove a server from the configuration."""
    from trunkline.cli.edit_servers import run_remove  # noqa: PLC0415

    run_remove(name, config, dry_run=dry_run)


@program.command()
def enable(
    name: ServerArgument, config: ConfigOption = None, dry_run: DryRunOption = False
) -> None:
    """Enable a disabled server in the configuration."""
    from trunkline.cli.edit_servers import run_enable  # noqa: PLC0415

    run_enable(name, config, disabled=False, dry_run=dry_run)


@program.command()
def disable(
    name: ServerArgument, config: ConfigOption = None, dry_run: DryRunOption = False
) -> None:
    """Disable a server in the configuration, but keep it there."""
    from trunkline.cli.edit_servers import run_enable  # noqa: PLC0415

    run_enable(name, config, disabled=True, dry_run=dry_run)


@program.command("list")
def list_servers(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the servers of the configuration, without starting them."""
    from trunkline.cli.edit_servers import run_list  # noqa: PLC0415

    run_list(config, json)


@program.command()
def ps(json: JsonOption = False) -> None:
    """Show your running gateways and the state of their servers."""
    from trunkline.cli.gateways import run_ps  # noqa: PLC0415

    run_ps(json)


@program.command()
def logs(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="A server of a gateway.")],
    pid: PidOption = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many lines to show.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show what a server wrote to stderr."""
    from trunkline.cli.logs import run_logs  # noqa: PLC0415

    run_logs(server, pid, lines, follow, json)


@program.command()
def reload(
    pid: PidOption = None,
    json: JsonOption = False,
) -> None:
    """Make your running gateways reload their configuration."""
    from trunkline.cli.gateways import run_reload  # noqa: PLC0415

    run_reload(pid, json)


@program.command()
def status(pid: PidOption = None, json: JsonOption = False) -> None:
    """Show whether your running gateways are paused, and list the kill switches."""
    from trunkline.cli.gateways import run_status  # noqa: PLC0415

    run_status(pid, json)


@program.command()
# No --all: `pause` and `kill` go to all gateways anyway.
def pause(pid: PidOption = None, json: JsonOption = False) -> None:
    """Refuse all calls until `resume`; calls in flight go on."""
    from trunkline.cli.gateways import GatewaySelection, run_pause  # noqa: PLC0415

    run_pause(GatewaySelection(pid), json)


@program.command()
def resume(pid: PidOption = None, every: AllOption = False, json: JsonOption = False) -> None:
    """Allow calls again."""
    from trunkline.cli.gateways import GatewaySelection, run_resume  # noqa: PLC0415

    run_resume(GatewaySelection(pid, every), json)


@program.command()
def kill(
    what: TargetArgument,
    name: TargetNameArgument = None,
    pid: PidOption = None,
    json: JsonOption = False,
) -> None:
    """Disable a tool, a server, a subject or everything, until `revive`."""
    from trunkline.cli.gateways import GatewaySelection, run_kill  # noqa: PLC0415

    run_kill(what, name, GatewaySelection(pid), json)


@program.command()
def revive(
    what: TargetArgument,
    name: TargetNameArgument = None,
    pid: PidOption = None,
    every: AllOption = False,
    json: JsonOption = False,
) -> None:
    """Enable again what was killed."""
    from trunkline.cli.gateways import GatewaySelection, run_revive  # noqa: PLC0415

    run_revive(what, name, GatewaySelection(pid, every), json)


@program.command("client-config")
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
        typer.Option("--stdio", help="The client starts it; default without \\[http] listen."),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The client connects to this URL. Default: public_url or listen of \\[http].",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The settings file. Default: where the client has it."),
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Change the file: add the entry, remove those it replaces."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what --write would change in the file.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --write: keep the entries that it replaces.")
    ] = False,
) -> None:
    """Print the entry for an MCP client's settings, or write it there."""
    from trunkline.cli.client_config import (  # noqa: PLC0415
        ClientConfigOptions,
        run_client_config,
    )

    options = ClientConfigOptions(stdio, http, file, write, dry_run, keep)
    run_client_config(client, config, options)


@program.command("import")
def import_files(
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Import this file only.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write to this file. Default: print.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Collect the servers of the MCP clients on this machine into one trunkline.toml."""
    from trunkline.cli.import_files import run_import  # noqa: PLC0415

    run_import(source, write, force)


program.command("tail", help="Short form of `audit tail`.")(tail)
program.command("why", help="Short form of `policy explain`.")(explain)
program.add_typer(audit_program, name="audit")
program.add_typer(policy_program, name="policy")
program.add_typer(token_program, name="token")
program.add_typer(key_program, name="key")
program.add_typer(sources_program, name="sources")
