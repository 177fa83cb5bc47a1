"""The audit log of a configuration: its store, its options, and the file with its chain tip.

Without `audit.url` it is a SQLite file in the state directory, shared by all gateways of a user.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from trunkline.audit.hash_chain import HashChain, Retention, TipFile
from trunkline.audit.log import AuditLog, AuditOptions, writer_label
from trunkline.audit.records import RecordEncoder
from trunkline.audit.redaction import RedactionRules
from trunkline.audit.store import AuditStore, NewerStoreError, StoreError
from trunkline.audit.usage import UsageReader
from trunkline.backends.builtin import BuiltinSettings
from trunkline.config import AuditSettings, Config
from trunkline.config.audit_table import SQLITE_PREFIX, sqlite_file

AUDIT_FILE = "audit.db"
TIP_FILE = "audit.tip"


class AuditLocation(NamedTuple):
    """Where records and the tip of the hash chain are stored, and how to display that."""

    url: str
    tip_file: TipFile | None
    display_url: str


def state_folder(config: Config, state: Path | None) -> Path | None:
    """Return the configured state directory, else `state`."""
    named = config.gateway.state_dir
    if named is None:
        return state
    folder = config.source.parent if config.source else Path()
    return folder / named if named else None


def find_audit_log(config: Config, state: Path | None) -> AuditLocation | None:
    """Return where the audit log is; None if there is none."""
    url = config.audit.url
    if url is None:
        if state is None:
            return None
        path = state / AUDIT_FILE
        return AuditLocation(f"{SQLITE_PREFIX}{path}", TipFile(state / TIP_FILE), str(path))
    if not url:
        return None
    shown = without_password(url)
    if state is None:
        return AuditLocation(url, None, shown)
    # One tip file per database. A changed password must not lose the tip, so it is left out.
    digest = hashlib.sha256(shown.encode()).hexdigest()[:12]
    return AuditLocation(url, TipFile(state / f"audit-{digest}.tip"), shown)


def build_store(location: AuditLocation) -> AuditStore:
    """Return the store of the audit log, not opened yet."""
    if path := sqlite_file(location.url):
        # Imported only where it is used: psycopg is an extra that may be missing.
        from trunkline.audit.sqlite import SqliteStore  # noqa: PLC0415

        return SqliteStore(path)
    from trunkline.audit.postgresql import PostgresStore  # noqa: PLC0415

    return PostgresStore(location.url, location.display_url)


def build_audit_log(
    config: Config, state: Path | None, mask: Callable[[bytes], bytes] = bytes
) -> AuditLog | None:
    """Return the audit log, not started yet; None if there is none.

    `mask` removes configured secrets from arguments.
    """
    location = find_audit_log(config, state)
    if location is None:
        return None
    settings = build_audit_options(config.audit)
    return AuditLog(
        config.gateway.name,
        location.display_url,
        partial(_open_chain, location),
        settings,
        mask=mask,
    )


def check_audit_log(config: Config, state: Path | None) -> None:
    """Raise NewerStoreError if a newer version of Trunkline writes the audit log.

    Other problems are left to the writer, which tries again. It blocks: run it in a thread.
    """
    location = find_audit_log(config, state)
    if location is None:
        return
    store = build_store(location)
    try:
        store.open(create=False)
    except NewerStoreError:
        raise
    except StoreError:
        return
    finally:
        store.close()


def build_usage_reader(config: Config, state: Path | None) -> UsageReader | None:
    """Return the usage reader, not started yet; None without an audit log."""
    location = find_audit_log(config, state)
    if location is None:
        return None
    return UsageReader(writer_label(config.gateway.name), partial(build_store, location))


def ranks_by_use(config: Config) -> bool:
    """Return whether a search server ranks tools by their use."""
    return any(
        not server.disabled
        and isinstance(server.backend, BuiltinSettings)
        and server.backend.builtin == "search"
        and server.backend.rank_by_use
        for server in config.servers
    )


def _open_chain(location: AuditLocation, encoder: RecordEncoder) -> HashChain:
    return HashChain(build_store(location), encoder, location.tip_file)


def build_audit_options(settings: AuditSettings) -> AuditOptions:
    """Return the options that a reload may change."""
    return AuditOptions(
        RedactionRules(settings.arguments, settings.redact, settings.max_arguments),
        Retention(settings.keep_days or None, settings.max_mib or None, settings.min_days),
        settings.queue,
        settings.when_full,
    )


def without_password(url: str) -> str:
    """Return `url` without its password."""
    if path := sqlite_file(url):
        return str(path)
    # The query is dropped too: libpq accepts a password there.
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{user}{parts.hostname or ''}{port}{parts.path}"
