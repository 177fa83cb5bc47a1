"""`trunkline import`: writes the servers of MCP clients and gateways into one `trunkline.toml`.

Invariants:
1. An existing file is overwritten only with `--force`, and no file is left half written.
2. The file may contain secrets: only its owner may read it. On a terminal, secrets are masked.
3. Entries that start or address this gateway are left out.
"""

import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from trunkline.audit.redaction import RedactionRules, Redactor, redact_text, redact_uri
from trunkline.cli.client_apps import ENTRY_NAME
from trunkline.cli.locations import locate_config
from trunkline.cli.output import (
    EXIT_FAILURE,
    count_text,
    fail,
    fail_config,
    fail_file,
    print_message,
)
from trunkline.config import (
    ClientFile,
    ConfigErrors,
    HttpSettings,
    RawConfig,
    find_client_files,
    is_loopback,
    is_own_url,
    read_raw_config,
    to_toml,
)
from trunkline.config.addresses import split_url
from trunkline.config.own_entries import serve_arguments
from trunkline.config.server_table import server_needs
from trunkline.documents.parser import Table, get_table
from trunkline.files import create_file, replace_file
from trunkline.printable import printable_lines

_DEFAULT_HTTP = HttpSettings()
_MASK = "…"
# Suffixes of keys whose values are names or locations, not secrets.
_REFERENCE_SUFFIXES = ("_env", "_url", "_file", "_claim")


def run_import(source: Path | None, target: Path | None, force: bool) -> None:
    """Write or print a configuration with the servers of one file, or of all files found."""
    if source is not None:
        configs = [_read_file(source)]
    else:
        configs = _read_found(find_client_files(Path.home(), os.environ, sys.platform, Path.cwd()))
    # Also the configuration in use: a client may connect to that gateway already.
    own = [get_table(config.tables, "http") for config in (*configs, *_existing_config())]
    configs = [_drop_own_entries(config, own) for config in configs]
    if not any(config.entries for config in configs):
        where = "in the files of MCP clients" if source is None else f"in {source}"
        fix = "; name one with `trunkline import FILE`" if source is None else ""
        fail(EXIT_FAILURE, f"no servers were found {where}{fix}")
    _print_needs(configs)
    if target is None:
        _print_config(configs)
    else:
        text = to_toml(*configs)
        write_config(target, text, force)
        # Counted in the result: servers that several clients have are written once.
        count = len(tomllib.loads(text)["servers"])
        servers = count_text(count, "server")
        print_message(f"wrote {target}, {servers}; try `trunkline check --config {target}`")


def _read_file(file: Path) -> RawConfig:
    try:
        return _announce(read_raw_config(file), "")
    except ConfigErrors as error:
        fail_config(error)


def _read_found(files: list[ClientFile]) -> list[RawConfig]:
    """Read all files that can be read, and report each."""
    configs: list[RawConfig] = []
    for file in files:
        try:
            configs.append(
                _announce(read_raw_config(file.path, skip_invalid=True), f"{file.client}: ")
            )
        except ConfigErrors as error:
            print_message(f"{file.client}: {file.path}: left out")
            print_message(*(f"  {error}" for error in error.errors))
    return configs


def _announce(config: RawConfig, client: str) -> RawConfig:
    names = ", ".join(entry.name for entry in config.entries) or "no servers"
    print_message(f"{client}{config.file}: {names}", *(f"  note: {note}" for note in config.notes))
    return config


def _existing_config() -> list[RawConfig]:
    """Return the configuration that is in use, if it can be read."""
    path = locate_config(None, os.environ, Path.cwd())
    try:
        return [] if path is None else [read_raw_config(path)]
    except ConfigErrors:
        return []  # the user did not ask for this file


def _drop_own_entries(config: RawConfig, own: Sequence[Table]) -> RawConfig:
    reasons = {
        entry.name: own_entry_reason(entry.name, entry.table, own) for entry in config.entries
    }
    for name, reason in reasons.items():
        if reason is not None:
            print_message(f"  left out: {name}, which is Trunkline itself: {reason}")
    others = tuple(entry for entry in config.entries if reasons[entry.name] is None)
    return msgspec.structs.replace(config, entries=others)


def own_entry_reason(name: str, table: dict[str, Any], own: Sequence[Table]) -> str | None:
    """Return why an entry is this gateway, None if it is another server.

    `own` are the `[http]` tables of the gateway. Another loopback URL is ours only
    with our name and paths: other servers use `/mcp` as well.
    """
    if serve_arguments(table) is not None:
        return "its command is this program"
    url = table.get("url")
    if any(is_own_url(url, http) for http in own):
        return "its url is an address of this gateway"
    parts = split_url(url) if isinstance(url, str) else None
    if parts is None or name.lower() != ENTRY_NAME or not is_loopback(parts.hostname or ""):
        return None
    paths = {_DEFAULT_HTTP.path, _DEFAULT_HTTP.sse_path}
    return "it has the name and url that `client-config` prints" if parts.path in paths else None


def _print_needs(configs: list[RawConfig]) -> None:
    """Print the environment variables that the servers need, and which are not set here."""
    needs: dict[str, list[str]] = {}
    for config in configs:
        context = config.resolve_context({})
        for entry in config.entries:
            for variable in server_needs(entry, context):
                needs.setdefault(variable, []).append(entry.name)
    if needs:
        print_message("set these variables before you start the gateway:")
    for variable, servers in needs.items():
        state = "" if variable in os.environ else "; not set here"
        names = ", ".join(dict.fromkeys(servers))
        print_message(f"  {variable}, for {names}{state}")


def _print_config(configs: list[RawConfig]) -> None:
    # Elsewhere the output may become a configuration, so it needs the real values.
    if sys.stdout.isatty():
        print_message("possible secrets are masked here; --write PATH writes them")
        print(printable_lines(to_toml(*map(_mask_config, configs))))
    else:
        print(to_toml(*configs))


def _mask_config(config: RawConfig) -> RawConfig:
    redactor = Redactor(RedactionRules())
    entries = [
        msgspec.structs.replace(entry, table=_mask_table(entry.table, redactor))
        for entry in config.entries
    ]
    tables = _mask_table(config.tables, redactor)
    return msgspec.structs.replace(config, entries=tuple(entries), tables=tables)


def _mask_table(table: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    return {key: _mask_value(key, value, redactor) for key, value in table.items()}


def _mask_value(key: str, value: Any, redactor: Redactor) -> Any:
    """Return a value with its secrets masked, but its structure kept."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        # All values: names do not show reliably which of them are secret.
        hidden = key in {"env", "headers"}
        return dict.fromkeys(table, _MASK) if hidden else _mask_table(table, redactor)
    if isinstance(value, list):
        return [_mask_value(key, item, redactor) for item in cast("list[Any]", value)]
    if not isinstance(value, str) or key.endswith(_REFERENCE_SUFFIXES):
        return value
    if redactor.is_secret_key(key):
        return _MASK
    return redact_text(value) if key == "args" else redact_uri(value)


def write_config(target: Path, text: str, force: bool) -> None:
    """Write a file that only its owner can read; exit if it exists, unless forced."""
    if target.exists() and not force:
        fail(EXIT_FAILURE, f"{target} already exists; --force overwrites it")
    try:
        # create_file fails if the file has appeared since the check.
        (replace_file if force else create_file)(target, text.encode())
    except FileExistsError:
        fail(EXIT_FAILURE, f"{target} already exists; --force overwrites it")
    except OSError as error:
        fail_file("write", target, error)
