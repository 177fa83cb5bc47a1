"""`trunkline key`: keys of this gateway, given out, listed and revoked."""

import time
from datetime import datetime
from pathlib import Path

from trunkline.auth.key_file import BadKeyFile, KeyRecord, add_key, read_keys, revoke_key
from trunkline.cli.config_choice import choose_config
from trunkline.cli.screen import FAILED, WRONG, fail, print_json, print_lines, print_table, say
from trunkline.cli.when import read_end


def add(
    option: Path | None, name: str, roles: tuple[str, ...], subject: str | None, expires: str | None
) -> None:
    """Make a key, and print it: that is the only time."""
    path = _file(option)
    try:
        end = None if expires is None else read_end(expires, time.time())
    except ValueError as wrong:
        fail(WRONG, f"--expires: {wrong}")
    try:
        key = add_key(path, name, subject or name, roles, end)
    except (OSError, BadKeyFile) as why:
        fail(FAILED, str(why))
    print_lines(key)
    say(f"trunkline: the key {name!r} is in {path}, as a digest; it is not shown again")


def revoke(option: Path | None, name: str) -> None:
    """Make a key worth nothing; a gateway that runs notices within a second or two."""
    path = _file(option)
    try:
        record = revoke_key(path, name)
    except (OSError, BadKeyFile) as why:
        fail(FAILED, str(why))
    say(f"trunkline: the key {name!r} of {record.subject} is revoked since {_day(record.revoked)}")


def list_keys(option: Path | None, as_json: bool) -> None:
    """Print what is known of all keys."""
    try:
        records = read_keys(_file(option))
    except BadKeyFile as why:
        fail(FAILED, str(why))
    now = time.time()
    if as_json:
        print_json([_told(record, now) for record in records])
        return
    columns = ("key", "state", "subject", "roles", "created", "expires")
    print_table(columns, [_row(record, now) for record in records])


def _told(record: KeyRecord, now: float) -> dict[str, object]:
    return {
        "id": record.id,
        "state": record.state(now),
        "subject": record.subject,
        "roles": record.roles,
        "created": record.created,
        "expires": record.expires,
        "revoked": record.revoked,
    }


def _row(record: KeyRecord, now: float) -> tuple[str, ...]:
    roles = ", ".join(record.roles)
    created, expires = _day(record.created), _day(record.expires)
    return record.id, record.state(now), record.subject, roles, created, expires


def _day(when: datetime | None) -> str:
    return "" if when is None else f"{when:%Y-%m-%d %H:%M}"


def _file(option: Path | None) -> Path:
    auth = choose_config(option).auth
    if auth is None or auth.keys is None:
        fail(FAILED, 'the configuration accepts no keys; add "key" to mode in [auth]')
    return auth.keys
