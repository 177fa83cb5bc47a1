"""Warnings about a valid configuration that exposes secrets, or lets other users change it.

    Config, environment ──find_exposures──> notes of the configuration, shown by `check` and `serve`

Files whose content decides who a caller is are refused where they are read, in `auth`.

Invariant: a warning names the setting or the file, and the remedy; it never shows a value.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from trunkline.backends.command import CommandSettings
from trunkline.backends.url import UrlSettings
from trunkline.config.addresses import is_confidential
from trunkline.config.audit_table import sqlite_file
from trunkline.config.model import Config
from trunkline.config.server_table import ServerSettings
from trunkline.documents.errors import quote
from trunkline.files import find_exposure
from trunkline.printable import secrets_in_arguments
from trunkline.stdio.child import child_environment

_PUBLIC_HEADERS = frozenset(("accept-language", "traceparent", "user-agent", "x-request-id"))
_MIN_SECRET_LENGTH = 8  # of a secret that is written in the configuration
_CREDENTIALS = re.compile(r"//[^/?#\s@]+@")


def find_exposures(
    config: Config, environ: Mapping[str, str], referenced: list[Path]
) -> Iterator[str]:
    """Yield one line for each exposure; `referenced` are the files that the configuration read."""
    for path, is_secret in _files(config, referenced).items():
        if (reason := find_exposure(path, is_secret)) is not None:
            yield f"{quote(str(path))}: {reason}"
    servers = [server for server in config.servers if not server.disabled]
    for server in servers:
        if _sends_credentials_openly(server):
            key = f"servers.{server.name}.url"
            yield f"{key}: credentials are sent unencrypted; use https:// or a tunnel"
    if any(isinstance(server.backend, CommandSettings) for server in servers):
        yield from _inherited_credentials(environ)


def _files(config: Config, referenced: list[Path]) -> dict[Path, bool]:
    """Return the files of a configuration, and whether others must not read them."""
    files = dict.fromkeys(referenced, True)
    if config.source is not None:
        files[config.source] = _has_literal_secret(config, config.source)
    if config.http.tls_cert is not None and config.http.tls_key is not None:
        files |= {Path(config.http.tls_cert): False, Path(config.http.tls_key): True}
    if config.auth is not None and config.auth.api_keys is not None:
        files[config.auth.api_keys] = False  # digests of random keys
    if config.auth is not None and config.auth.jwt is not None and config.auth.jwt.jwks_file:
        files[config.auth.jwt.jwks_file] = False
    if config.audit.url and (path := sqlite_file(config.audit.url)) is not None:
        files[path] = True
    return files


def _has_literal_secret(config: Config, source: Path) -> bool:
    """Return whether the file itself has a secret of a server, in place of a reference to one."""
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    secrets = "\0".join(secret for server in config.servers for secret in server.backend.secrets)
    args = [
        arg
        for server in config.servers
        if isinstance(server.backend, CommandSettings)
        for arg in server.backend.args
    ]
    # Values of names such as `api_key`; those of other names and of references do not count. A
    # reference stays in the settings of a server if its variable is not set.
    candidates = [each for each in secrets_in_arguments((text, *args)) if "${" not in each]
    return any(
        len(each) >= _MIN_SECRET_LENGTH and each in text and each in secrets for each in candidates
    )


def _sends_credentials_openly(server: ServerSettings) -> bool:
    backend = server.backend
    if not isinstance(backend, UrlSettings) or is_confidential(backend.url):
        return False
    headers = {name.lower() for name in backend.headers} - _PUBLIC_HEADERS
    in_query = bool(secrets_in_arguments((backend.url,)))
    return bool(headers) or backend.oauth is not None or in_query


def _inherited_credentials(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(child_environment(environ, {}).items()):
        if _CREDENTIALS.search(value):
            yield (
                f"{name}: every server with a command inherits the credentials in this variable;"
                " unset it, and set it in the env of the servers that need it"
            )
