"""`trunkline add | remove | enable | disable | list`: the servers in a `trunkline.toml`.

    arguments ──> table ──> new text ──> loads? ──> the server starts? ──> lock, replace ──> reload

Invariants:
1. A file that cannot be loaded is never written.
2. No change of another command is lost: the text is read, changed and replaced under a lock, and
   the replacement is atomic.
3. The mode and owner of the file stay. Only its owner can read a new file.
"""

import asyncio
import os
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trunkline.app.application import DEFAULT_CONFIG
from trunkline.app.control import ServerStatus
from trunkline.audit.redaction import redact_text, redact_uri
from trunkline.cli.gateways import (
    find_running_gateway,
    print_gateways_without_config,
    reload_config,
)
from trunkline.cli.locations import locate_config
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    count_text,
    fail,
    fail_config,
    fail_file,
    first_line,
    print_diff,
    print_heading,
    print_json,
    print_lines,
    print_message,
    print_table,
)
from trunkline.cli.startup import start_gateway
from trunkline.config import Config, ConfigErrors, load_config, read_raw_config
from trunkline.config.client_files import unique_names
from trunkline.config.edit_toml import EditError, add_server, remove_server, set_disabled
from trunkline.config.load import is_client_file
from trunkline.config.own_entries import CONFIG_FILE
from trunkline.config.server_table import BACKEND_KINDS
from trunkline.config.write_toml import is_literal_secret
from trunkline.files import folder_lock, rewrite_file
from trunkline.gateway.event_text import describe_state
from trunkline.gateway.settings import HEALTHY_STATES
from trunkline.mcp.features import FeatureKind
from trunkline.printable import secrets_in_arguments

_URL_SCHEMES = ("http://", "https://")
_MAX_LISTED_TOOLS = 20
_KIND_WORDS = {
    FeatureKind.TOOL: "tool",
    FeatureKind.PROMPT: "prompt",
    FeatureKind.RESOURCE: "resource",
    FeatureKind.TEMPLATE: "template",
}


class NewServer(Struct, frozen=True):
    """What the command line says of a server; options are KEY=VALUE or `NAME: VALUE`."""

    name: str
    words: tuple[str, ...]
    env: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    def table(self) -> dict[str, Any]:
        """Return its table; raises ValueError."""
        if (valid := unique_names([self.name])[self.name]) != self.name:
            raise ValueError(f"the name {self.name!r} is not valid; try {valid!r}")
        env = dict(_split(text, "=", "--env KEY=VALUE") for text in self.env)
        headers = dict(_split(text, ":", "--header 'NAME: VALUE'") for text in self.headers)
        first, *args = self.words
        if first.startswith(_URL_SCHEMES):
            if args or env:
                raise ValueError("a server with a URL takes no arguments and no --env")
            return {"url": first, **({"headers": headers} if headers else {})}
        if headers:
            raise ValueError("--header is for a server with a URL")
        table: dict[str, Any] = {"command": first, "args": args, "env": env}
        return {key: value for key, value in table.items() if value}


def _split(text: str, separator: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise ValueError(f"expected {form}")  # without the text: it may be a secret
    return name.strip(), value.strip() if separator == ":" else value


def run_add(
    server: NewServer, option: Path | None, timeout: float | None, *, force: bool, dry_run: bool
) -> None:
    """Start a server once, and add it to the configuration if it works."""
    path = _editable_file(option)
    try:
        table = server.table()
    except ValueError as error:
        fail(EXIT_USAGE, str(error))

    def add(text: str) -> str:
        return add_server(text, server.name, table)

    _warn_of_secrets(server.name, table)
    old = _read(path)
    new, config = _prepare(path, old, add)
    if dry_run:
        print_diff(path, old, new)
        return
    if (reason := _try_server(config, server.name, timeout)) is not None:
        if not force:
            fail(EXIT_FAILURE, reason, f"{server.name} was not added; --force adds it anyway")
        print_message(f"trunkline: {reason}")
    is_first = not path.exists()
    _change(path, add)
    print_lines(f"added {server.name} to {path.absolute()}")
    reload_config(path)
    if is_first:
        print_gateways_without_config()


def run_remove(name: str, option: Path | None, *, dry_run: bool) -> None:
    """Remove a server from the configuration."""
    _run_edit(option, lambda text: remove_server(text, name), f"removed {name} from", dry_run)


def run_enable(name: str, option: Path | None, *, disabled: bool, dry_run: bool) -> None:
    """Enable or disable a server in the configuration."""
    done = f"{'disabled' if disabled else 'enabled'} {name} in"
    _run_edit(option, lambda text: set_disabled(text, name, disabled=disabled), done, dry_run)


def _run_edit(option: Path | None, edit: Callable[[str], str], done: str, dry_run: bool) -> None:
    path = _editable_file(option)
    if dry_run:
        old = _read(path)
        print_diff(path, old, _prepare(path, old, edit)[0])
        return
    _change(path, edit)
    print_lines(f"{done} {path.absolute()}")
    reload_config(path)


def _editable_file(option: Path | None) -> Path:
    """Return the `trunkline.toml` to change; it need not exist."""
    path = locate_config(option, os.environ, Path.cwd()) or Path(CONFIG_FILE)
    if is_client_file(path, ""):
        fix = f"`trunkline import {path} --write {CONFIG_FILE}` makes one of it"
        fail(EXIT_USAGE, f"{path} belongs to an MCP client; expected a {CONFIG_FILE}; {fix}")
    return path


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8") if path.exists() else ""
    except UnicodeDecodeError:
        fail(EXIT_USAGE, f"{path}: not UTF-8; save it as UTF-8")
    except OSError as error:
        fail_file("read", path, error)


def _prepare(path: Path, text: str, edit: Callable[[str], str]) -> tuple[str, Config]:
    """Return the edited text and its configuration; exit if it cannot be edited or loaded."""
    try:
        try:
            new = edit(text)
        except tomllib.TOMLDecodeError:
            new = text  # loading it names the mistakes and their lines
        return new, load_config(path, os.environ, text=new)
    except EditError as error:
        fail(EXIT_FAILURE, f"{path}: {error}")
    except ConfigErrors as error:
        fail_config(error)


def _change(path: Path, edit: Callable[[str], str]) -> None:
    target = path.resolve()  # a link stays a link
    try:
        with folder_lock(target.parent):
            # Read again: another command may have changed it.
            old = _read(target)
            new, _ = _prepare(path, old, edit)
            if new != old:
                rewrite_file(target, new.encode())
    except OSError as error:
        fail_file("write", path, error)


def _warn_of_secrets(name: str, table: dict[str, Any]) -> None:
    for key, option, template in (("env", "--env", "{}={}"), ("headers", "--header", "{}: {}")):
        for each, value in table.get(key, {}).items():
            if is_literal_secret(each, value):
                variable = "".join(c if c.isalnum() else "_" for c in each.upper())
                better = template.format(each, f"${{{variable}}}")
                print_message(
                    f"trunkline: servers.{name}.{key}.{each} is a secret in the file, and in the"
                    f" history of your shell; safer: {option} '{better}' and a variable {variable}"
                )
    if any(secrets_in_arguments((table.get("url", ""), *table.get("args", ())))):
        print_message(
            f"trunkline: servers.{name}: the arguments seem to have a secret, which every local"
            " user can read; safer: ${VAR} in an --env or --header"
        )


def _try_server(config: Config, name: str, timeout: float | None) -> str | None:
    """Start one server and print what it offers; return why it cannot be used."""
    server = next(each for each in config.servers if each.name == name)
    if server.disabled:
        return next((note for note in config.notes if f"servers.{name}:" in note), "it is disabled")
    return asyncio.run(_try_alone(msgspec.structs.replace(config, servers=(server,)), timeout))


async def _try_alone(config: Config, timeout: float | None) -> str | None:
    async with start_gateway(config, timeout) as started:
        (status,) = started.statuses()
        if status.state not in HEALTHY_STATES:
            details = [f"{status.name} does not start: {first_line(status.error or 'not ready')}"]
            details += [f"stderr: {first_line(status.stderr)}"] if status.stderr else []
            return "; ".join(details)
        catalog = started.gateway.registry.catalog
        counts = {kind: len(list(catalog.entries(kind))) for kind in FeatureKind}
        offered = [count_text(n, _KIND_WORDS[kind]) for kind, n in counts.items() if n]
        text = ", ".join(offered)
        print_heading(f"{status.name} offers {text or 'nothing'} ({status.revision})")
        tools = [entry.public_name for entry in catalog.entries(FeatureKind.TOOL)]
        print_lines(*(f"  {tool}" for tool in tools[:_MAX_LISTED_TOOLS]))
        if (more := len(tools) - _MAX_LISTED_TOOLS) > 0:
            print_lines(f"  and {more} more")
    return None


class ListedServer(Struct, frozen=True):
    """A server of a configuration; `state` is that in a running gateway, if there is one."""

    name: str
    state: str
    kind: str
    target: str
    # Seconds until the gateway tries again.
    retry_in: float | None = None


def run_list(option: Path | None, as_json: bool) -> None:
    """Print the servers of a configuration; nothing is started."""
    path = locate_config(option, os.environ, Path.cwd())
    entries = _default_entries() if path is None else _file_entries(path)
    states = asyncio.run(_running_states(path))
    servers = [_listed_server(name, table, states) for name, table in entries]
    if as_json:
        print_json(servers)
        return
    print_heading("embedded default" if path is None else str(path.absolute()))
    columns = ("server", "state", "kind", "command or url")
    rows = [(s.name, describe_state(s.state, s.retry_in), s.kind, s.target) for s in servers]
    print_table(columns, rows)


def _default_entries() -> list[tuple[str, dict[str, Any]]]:
    return [(each.name, {"builtin": each.builtin}) for each in DEFAULT_CONFIG.servers]


def _file_entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    try:
        return [(entry.name, entry.table) for entry in read_raw_config(path).entries]
    except ConfigErrors as error:
        fail_config(error)


def _listed_server(
    name: str, table: dict[str, Any], states: dict[str, ServerStatus]
) -> ListedServer:
    kind = next(each for each in BACKEND_KINDS if each in table)
    words: Sequence[str] = [str(table[kind]), *map(str, table.get("args", ()))]
    target = redact_uri(words[0]) if kind == "url" else redact_text(" ".join(words))
    if table.get("disabled") is True:
        return ListedServer(name, "disabled", kind, target)
    status = states.get(name)
    if status is None:
        return ListedServer(name, "enabled", kind, target)
    return ListedServer(name, status.state, kind, target, status.retry_in)


async def _running_states(path: Path | None) -> dict[str, ServerStatus]:
    """Return the states of the servers in a running gateway with this configuration."""
    gateway = await find_running_gateway(path)
    if gateway is None or gateway.status is None:
        return {}
    return {server.name: server for server in gateway.status.servers}
