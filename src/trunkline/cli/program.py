"""The commands and their arguments, as typer reads them; what they do is elsewhere.

Each command imports what it needs when it is run: nobody waits for what others need.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from trunkline import __version__
from trunkline.cli.audit_program import (
    Server,
    Status,
    Subject,
    Tool,
    audit_program,
)
from trunkline.cli.identity_program import key_program, token_program
from trunkline.cli.options import Config, Json
from trunkline.cli.policy_program import policy_program
from trunkline.cli.sources_program import sources_program

program = typer.Typer(
    help="A governed MCP gateway: every MCP server behind one line.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all went well, 1 something did not work, 2 bad arguments or config.",
)

Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.0, help="Wait no longer than this; else as configured."),
]
Pid = Annotated[
    int | None, typer.Option(metavar="PID", help="Only the gateway with this process number.")
]
Every = Annotated[bool, typer.Option("--all", help="All of your gateways, if several are running.")]
What = Annotated[str, typer.Argument(metavar="WHAT", help="tool, server, subject, or all.")]
Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Its name; of a tool also a pattern with * and ?."),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"trunkline {__version__}")
        raise typer.Exit


@program.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Read what goes before a command."""


@program.command()
def serve(
    config: Config = None,
    stdio: Annotated[
        bool,
        typer.Option("--stdio", help="Over stdin and stdout; the default without \\[http] listen."),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Over HTTP at this address, whatever \\[http] listen says; with --stdio, both.",
        ),
    ] = None,
) -> None:
    """Serve MCP clients, over stdin and stdout or over HTTP, until they end or a signal comes."""
    from trunkline.cli.serve import serve  # noqa: PLC0415

    serve(config, stdio, http)


@program.command()
def check(config: Config = None, json: Json = False, timeout: Timeout = None) -> None:
    """Check the configuration, start every server once, and show how that went."""
    from trunkline.cli.check import check  # noqa: PLC0415

    check(config, json, timeout)


@program.command()
def tools(
    server: Annotated[str | None, typer.Argument(help="Only the tools of this server.")] = None,
    config: Config = None,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """List the tools of all servers, or of one."""
    from trunkline.cli.tools import tools  # noqa: PLC0415

    tools(config, json, server, timeout)


@program.command()
def call(
    name: Annotated[str, typer.Argument(help="The tool, as `trunkline tools` shows it.")],
    arguments: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="Its arguments, as a JSON object.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="One argument; JSON if it is any, else text."),
    ] = None,
    *,
    config: Config = None,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Call a tool, and print what it says."""
    from trunkline.cli.call import call, read_arguments  # noqa: PLC0415

    call(name, read_arguments(arguments, arg or ()), config, json, timeout)


@program.command()
def find(
    query: Annotated[str, typer.Argument(help='What the tool should do: "create a pull request".')],
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=50, help="How many to show.")] = 5,
    config: Config = None,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Find the tools that do something, best match first."""
    from trunkline.cli.find import find  # noqa: PLC0415

    find(query, config, json, limit, timeout)


@program.command()
def ps(json: Json = False) -> None:
    """Show the gateways that you are running, and how their servers are."""
    from trunkline.cli.ps import ps  # noqa: PLC0415

    ps(json)


@program.command()
def reload(
    pid: Pid = None,
    json: Json = False,
) -> None:
    """Have the gateways that you are running take their configuration as it is by now."""
    from trunkline.cli.reload import reload  # noqa: PLC0415

    reload(pid, json)


@program.command()
def status(pid: Pid = None, json: Json = False) -> None:
    """Show how your running gateways are: whether they are paused, and what is stopped."""
    from trunkline.cli.operate import status  # noqa: PLC0415

    status(pid, json)


@program.command()
def pause(pid: Pid = None, json: Json = False) -> None:
    """Have every call answered with an error until `resume`; calls under way go on."""
    from trunkline.cli.operate import Choice, pause  # noqa: PLC0415

    pause(Choice(pid), json)


@program.command()
def resume(pid: Pid = None, every: Every = False, json: Json = False) -> None:
    """Have calls answered again."""
    from trunkline.cli.operate import Choice, resume  # noqa: PLC0415

    resume(Choice(pid, every), json)


@program.command()
def kill(what: What, name: Name = None, pid: Pid = None, json: Json = False) -> None:
    """Stop a tool, a server, a subject or all, at once and until it is revived."""
    from trunkline.cli.operate import Choice, kill  # noqa: PLC0415

    kill(what, name, Choice(pid), json)


@program.command()
def revive(
    what: What, name: Name = None, pid: Pid = None, every: Every = False, json: Json = False
) -> None:
    """Let something go on that was killed."""
    from trunkline.cli.operate import Choice, revive  # noqa: PLC0415

    revive(what, name, Choice(pid, every), json)


@program.command()
def bench(
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=5.0, max=600.0, help="How long to measure.")
    ] = 20.0,
    json: Json = False,
) -> None:
    """Measure how fast the gateway is here, beside no gateway, nginx and the FastMCP proxy."""
    from trunkline.cli.bench import bench  # noqa: PLC0415

    raise typer.Exit(bench(seconds, json))


program.add_typer(sources_program, name="sources")
program.add_typer(token_program, name="token")
program.add_typer(key_program, name="key")
program.add_typer(audit_program, name="audit")


@program.command()
def tail(
    *,
    tool: Tool = None,
    subject: Subject = None,
    server: Server = None,
    status: Status = None,
    lines: Annotated[
        int, typer.Option(metavar="N", min=0, max=1000, help="How many of those before.")
    ] = 10,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show calls as they go through, until Ctrl-C."""
    from trunkline.cli.audit import Wanted  # noqa: PLC0415
    from trunkline.cli.tail import tail  # noqa: PLC0415

    tail(config, Wanted(tool, subject, server, tuple(status or ())), lines, json)


program.add_typer(policy_program, name="policy")


@program.command("client-config")
def client_config(
    client: Annotated[str, typer.Argument(help="The client, such as claude-desktop or cursor.")],
    config: Config = None,
    stdio: Annotated[
        bool,
        typer.Option("--stdio", help="The client starts it; the default without \\[http] listen."),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The client comes to this URL; else as \\[http] has it."),
    ] = None,
) -> None:
    """Print what to paste into an MCP client's settings, and say where."""
    from trunkline.cli.client_config import client_config  # noqa: PLC0415

    client_config(client, config, stdio, http)


@program.command()
def why(
    tool: Annotated[str, typer.Argument(help="The tool, as `trunkline tools` shows it.")],
    *,
    subject: Annotated[str, typer.Option("--as", metavar="SUBJECT", help="Who would call it.")],
    role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="A role that they have; repeat it.")
    ] = None,
    client: Annotated[str, typer.Option(metavar="NAME", help="What their client is called.")] = "",
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="The arguments, as a JSON object.")
    ] = None,
    kind: Annotated[
        Literal["tool", "prompt", "resource", "template"],
        typer.Option(help="What it is, if it is not a tool."),
    ] = "tool",
    config: Config = None,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Say whether somebody may call a tool, and which rule in which line decides."""
    from trunkline.cli.why import read_asked, why  # noqa: PLC0415

    asked = read_asked(tool, kind, (subject, role or (), client), args)
    why(asked, config, json, timeout)


@program.command("import")
def import_files(
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Only from this file.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write it there; else it is printed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Gather the servers of the MCP clients on this machine into one trunkline.toml."""
    from trunkline.cli.import_files import import_files  # noqa: PLC0415

    import_files(source, write, force)
