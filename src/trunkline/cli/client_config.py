"""`trunkline client-config`: prints the entry for an MCP client's settings, or writes it there.

    configuration ──> address, [auth] ──> entry ──> print it, name the file and old entries
                                                └─> --write: change the file, with a backup

`client_apps` knows the clients, and `client_settings` changes their files.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trunkline.audit.redaction import redact_text, redact_uri
from trunkline.cli.client_apps import CLIENTS, ENTRY_NAME, ClientApp, serve_command, settings_path
from trunkline.cli.client_settings import (
    OldEntry,
    Settings,
    edit_settings,
    find_old_entries,
    masked_texts,
    merge_entry,
    parse_settings,
    read_settings,
    write_settings,
)
from trunkline.cli.locations import locate_config
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    fail,
    fail_config,
    fail_file,
    print_diff,
    print_lines,
    print_message,
)
from trunkline.config import (
    ConfigErrors,
    HttpSettings,
    RawConfig,
    find_client_files,
    read_raw_config,
)
from trunkline.config.addresses import is_http_url, reachable_origin
from trunkline.config.auth_table import auth_modes
from trunkline.config.edit_toml import EditError
from trunkline.documents.parser import Table, get_table


class ClientConfigOptions(Struct, frozen=True):
    """The options of `client-config`."""

    stdio: bool = False
    http: str | None = None
    file: Path | None = None
    write: bool = False
    dry_run: bool = False
    keep: bool = False


def run_client_config(name: str, option: Path | None, options: ClientConfigOptions) -> None:
    """Print the entry for one client, or put it into the client's settings."""
    client = _find_client(name, options)
    gateway = _read_gateway(locate_config(option, os.environ, Path.cwd()))
    tables = {} if gateway is None else gateway.tables
    url = _chosen_url(client, tables, options)
    modes = auth_modes(get_table(tables, "auth"))
    has_auth = bool(modes)
    if url is not None:
        entry = client.url_entry(url, has_auth=has_auth)
    else:
        source = None if gateway is None else gateway.file.absolute()
        entry = client.command_entry(serve_command(source), has_auth=has_auth)
    path = settings_path(client) if options.file is None else options.file
    if options.write or options.dry_run:
        entry = _change_settings(client, path, entry, gateway, options)
    else:
        # On stderr: stdout has nothing but the entry.
        print_message(
            f"{client.title}: merge this into {path}, then restart it; --write does it for you."
        )
        print_message(*old_entry_lines(client, path, gateway))
        print(client.format_entry(entry))
    if url is not None:
        print_message(
            f"`trunkline serve` must be running at {url}; with --stdio, the client starts it."
        )
    if has_auth and client.token in json.dumps(entry):
        print_message(client.token_help(has_keys="api_key" in modes))


def _find_client(name: str, options: ClientConfigOptions) -> ClientApp:
    """Return the client of this name; exit if the options do not fit it."""
    client = CLIENTS.get(name)
    if client is None:
        fail(EXIT_USAGE, f"unknown client {name!r}; known clients: {', '.join(CLIENTS)}")
    http = options.http
    if options.stdio and http is not None:
        fail(EXIT_USAGE, "give --stdio or --http URL, not both")
    if http is not None and client.url_key is None:
        fail(EXIT_USAGE, f"{client.title} starts servers itself: its settings cannot contain a url")
    if http is not None and not is_http_url(http):
        fail(EXIT_USAGE, "--http: expected http:// or https:// and a host; write the whole address")
    return client


def _read_gateway(path: Path | None) -> RawConfig | None:
    try:
        # Unresolved: variables may be set only where the gateway runs.
        return None if path is None else read_raw_config(path)
    except ConfigErrors as error:
        fail_config(error)


# The address


def _chosen_url(client: ClientApp, tables: Table, options: ClientConfigOptions) -> str | None:
    """Return the URL of the entry, None if the client starts the gateway."""
    if client.url_key is None or options.stdio:
        return None
    return _configured_url(tables) if options.http is None else options.http


def _configured_url(tables: Table) -> str | None:
    """Return the URL of MCP over HTTP, None if it is off or its port is not fixed."""
    http = msgspec.convert(get_table(tables, "http"), HttpSettings)
    # Port 0 is another port at every start, so no entry can name it.
    if (http.listen is None or http.listen.endswith(":0")) and http.public is None:
        return None
    scheme = "http" if http.tls_cert is None else "https"
    return client_url(f"{scheme}://{http.listen}", http, get_table(tables, "auth").get("resource"))


def client_url(origin: str, http: HttpSettings, resource: str | None) -> str:
    """Return the URL of MCP for clients of a gateway that listens at an origin."""
    if http.public is not None:
        return http.public.base + http.path
    return reachable_origin(origin) + http.path if resource is None else resource


# Old entries


def old_entry_lines(client: ClientApp, path: Path, gateway: RawConfig | None) -> list[str]:
    """Return which entries of a client to remove; nothing if its settings cannot be read."""
    lines: list[str] = []
    for each in (path, *_other_files(client, path)):
        found = _old_entries_in(client, each, gateway)
        if found:
            lines.append(f"Remove these entries from {each}, or their servers run twice:")
            lines += [f"  {old.name}: {old.reason}" for old in found]
    return lines


def _old_entries_in(client: ClientApp, path: Path, gateway: RawConfig | None) -> list[OldEntry]:
    try:
        return find_old_entries(read_settings(client, path), gateway)
    except (ConfigErrors, OSError):
        return []


def _other_files(client: ClientApp, path: Path) -> list[Path]:
    """Return other settings files of a client, such as those of the project."""
    files = find_client_files(Path.home(), os.environ, sys.platform, Path.cwd())
    own = os.path.realpath(path)
    paths = [each.path for each in files if each.client == client.title]
    return [each for each in paths if os.path.realpath(each) != own]


def find_replaced_servers(gateway: RawConfig) -> dict[str, list[str]]:
    """Return the names of old entries by the short name of their client."""
    found: dict[str, list[str]] = {}
    for name, client in CLIENTS.items():
        old = _old_entries_in(client, settings_path(client), gateway)
        if old:
            found[name] = [each.name for each in old]
    return found


# The settings file


def _change_settings(
    client: ClientApp,
    path: Path,
    entry: dict[str, Any],
    gateway: RawConfig | None,
    options: ClientConfigOptions,
) -> Table:
    """Write an entry into the settings, or print the diff; return the merged entry."""
    try:
        target = path.resolve()  # a link stays a link
        settings = read_settings(client, target)
        old = [] if options.keep else find_old_entries(settings, gateway)
        before = settings.entry()
        entry = merge_entry(before, entry)
        text = edit_settings(settings, entry, old)
        parse_settings(client, target, text)
        if options.dry_run:
            print_diff(target, *masked_texts(settings, text))
        elif text != settings.text:
            backup = write_settings(settings, text)
            _print_change(settings, entry, old, backup)
        if text == settings.text:
            print_lines(f"{target} is up to date")
    except ConfigErrors as error:
        fail_config(error, EXIT_FAILURE)
    except EditError as error:
        fail(EXIT_FAILURE, f"{path}: {error}")
    except (OSError, RuntimeError) as error:
        fail_file("change", path, error)
    # Other files, such as those of a project, may be shared with others: they are not changed.
    print_message(*old_entry_lines(client, target, gateway) if not options.dry_run else ())
    return entry


def _print_change(
    settings: Settings, entry: Table, old: list[OldEntry], backup: Path | None
) -> None:
    before = settings.entry()
    print_lines(f"{'updated' if before else 'added'} {ENTRY_NAME} in {settings.path}")
    if before and (target := _target(before)) != _target(entry):
        print_lines(f"it was: {target}")
    for each in old:
        print_lines(f"removed {each.name}: {each.reason}")
    if backup is not None:
        print_lines(f"backup: {backup}; to undo, copy it back")
    print_message(f"Restart {settings.client.title}.")


def _target(entry: Table) -> str:
    """Return the URL or the command of an entry, without secrets."""
    for key in ("url", "serverUrl", "httpUrl"):
        if key in entry:
            return redact_uri(str(entry[key]))
    words = [entry.get("command", ""), *(entry.get("args") or ())]
    return redact_text(" ".join(map(str, words)))
