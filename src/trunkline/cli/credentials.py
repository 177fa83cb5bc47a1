"""`trunkline key` and `trunkline token`: API keys and tokens of callers."""

import asyncio
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from trunkline.app.auth import build_expected_claims, build_verifier
from trunkline.auth.api_keys import ApiKeyRecord, KeyFileError, add_key, read_key_file, revoke_key
from trunkline.auth.claims import AuthenticationError
from trunkline.auth.tokens import TokenRequest, decode_unverified
from trunkline.auth.tokens import issue_token as mint_token
from trunkline.cli.locations import choose_config
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    fail,
    print_json,
    print_lines,
    print_message,
    print_table,
)
from trunkline.cli.times import parse_duration, parse_end_time
from trunkline.config import AuthSettings, Config


def run_key_add(
    option: Path | None, name: str, roles: tuple[str, ...], subject: str | None, expires: str | None
) -> None:
    """Create a key and print it; only its digest is stored."""
    config = choose_config(option)
    path = _key_file(config)
    try:
        end = None if expires is None else parse_end_time(expires, time.time())
    except ValueError as error:
        fail(EXIT_USAGE, f"--expires: {error}")
    try:
        key = add_key(path, name, subject or name, roles, end)
    except (OSError, KeyFileError) as error:
        fail(EXIT_FAILURE, str(error))
    # stdout has only the key, so that a script can store it.
    print_lines(key)
    print_message(
        f"trunkline: {path} has the digest of key {name!r}; the key itself is not shown again"
    )
    _print_role_warnings(config, roles)


def _print_role_warnings(config: Config, roles: tuple[str, ...]) -> None:
    print_message(*(f"warning: {each}" for each in config.policy.role_warnings(roles)))


def run_key_revoke(option: Path | None, name: str) -> None:
    """Revoke a key; running gateways notice within two seconds."""
    path = _key_file(choose_config(option))
    try:
        record = revoke_key(path, name)
    except (OSError, KeyFileError) as error:
        fail(EXIT_FAILURE, str(error))
    print_message(
        f"trunkline: key {name!r} of {record.subject} revoked {_format_day(record.revoked)}"
    )


def run_key_list(option: Path | None, as_json: bool) -> None:
    """Print all keys, without their secrets."""
    try:
        records = read_key_file(_key_file(choose_config(option)))
    except KeyFileError as error:
        fail(EXIT_FAILURE, str(error))
    now = time.time()
    if as_json:
        print_json([_key_json(record, now) for record in records])
        return
    columns = ("key", "state", "subject", "roles", "created", "expires")
    print_table(columns, [_key_row(record, now) for record in records])


def _key_json(record: ApiKeyRecord, now: float) -> dict[str, object]:
    return {
        "id": record.id,
        "state": record.state(now),
        "subject": record.subject,
        "roles": record.roles,
        "created": record.created,
        "expires": record.expires,
        "revoked": record.revoked,
    }


def _key_row(record: ApiKeyRecord, now: float) -> tuple[str, ...]:
    roles = ", ".join(record.roles)
    created, expires = _format_day(record.created), _format_day(record.expires)
    return record.id, record.state(now), record.subject, roles, created, expires


def _format_day(when: datetime | None) -> str:
    return "" if when is None else f"{when:%Y-%m-%d %H:%M}"


def _key_file(config: Config) -> Path:
    auth = config.auth
    if auth is None or auth.api_keys is None:
        fail(EXIT_FAILURE, 'the configuration accepts no keys; add "api_key" to mode in [auth]')
    return auth.api_keys


MAX_TOKEN_INPUT = 64 * 1024


def run_token_mint(
    option: Path | None,
    subject: str,
    roles: tuple[str, ...],
    lifetime: str,
    scopes: tuple[str, ...],
) -> None:
    """Print a token signed with the configured secret."""
    config = choose_config(option)
    auth = config.auth
    jwt = auth.jwt if auth is not None else None
    if auth is None or jwt is None:
        fail(EXIT_FAILURE, "the configuration accepts no tokens; set secret_env in [auth.jwt]")
    if jwt.secret is None:
        fail(EXIT_FAILURE, f"tokens are issued by {jwt.issuer}; request one there")
    try:
        seconds = parse_duration(lifetime)
    except ValueError as error:
        fail(EXIT_USAGE, f"--ttl: {error}")
    request = TokenRequest(subject=subject, roles=roles, lifetime=seconds, scopes=scopes)
    expected = build_expected_claims(jwt, auth.required_scopes)
    try:
        # One of the accepted audiences is enough.
        token = mint_token(request, expected, jwt.audiences[0], jwt.secret, time.time())
    except AuthenticationError as error:
        fail(EXIT_USAGE, f"the token would be rejected: {error.reason}")
    print_lines(token)
    print_message(
        f"trunkline: for {subject}, valid for {lifetime}; its holder can act as {subject}"
    )
    _print_role_warnings(config, roles)


def run_token_inspect(option: Path | None, token: str | None, as_json: bool) -> None:
    """Print the content of a token or the owner of a key, and whether it is accepted."""
    auth = choose_config(option).auth
    # stdin by default: other users can see the arguments of a process.
    given = (sys.stdin.read(MAX_TOKEN_INPUT) if token in {None, "-"} else token or "").strip()
    # A copied header is accepted, too.
    given = given.removeprefix("Bearer ").strip()
    found: dict[str, Any] = {}
    try:
        # First, so that the content is shown even if the token is rejected.
        found = decode_unverified(given)
        check = asyncio.run(_check_token(auth, given))
    except AuthenticationError as error:
        check = {"valid": False, "reason": error.reason}
    except (OSError, ValueError) as error:
        fail(EXIT_FAILURE, str(error))
    report = found | {"check": check}
    if as_json:
        print_json(report)
    else:
        _print_token(report)
    if not check["valid"]:
        raise SystemExit(EXIT_FAILURE)


async def _check_token(auth: AuthSettings | None, token: str) -> dict[str, Any]:
    # Without [auth] every caller is accepted, so "valid" would say nothing about the token.
    if auth is None or not auth.is_required:
        return {
            "valid": False,
            "reason": "tokens are not checked: the configuration has no [auth], or mode none",
        }
    identity = await build_verifier(auth).verify(token)
    principal = identity.principal
    return {
        "valid": True,
        "id": principal.id,
        "subject": principal.subject,
        "roles": list(principal.roles),
        "scopes": sorted(principal.scopes),
    }


def _print_token(report: dict[str, Any]) -> None:
    for part in ("header", "claims"):
        rows = [(str(key), _claim_text(key, value)) for key, value in report.get(part, {}).items()]
        if rows:
            print_table((part, ""), rows)
            print_lines("")
    check = report["check"]
    if not check["valid"]:
        print_lines(f"not valid: {check['reason']}")
        return
    roles = ", ".join(check["roles"]) or "none"
    print_lines(f"valid: {check['id']}, subject {check['subject']}, roles: {roles}")


def _claim_text(key: str, value: Any) -> str:
    # Beyond the year 2242 a number is hardly a time in seconds.
    if key in {"exp", "iat", "nbf"} and isinstance(value, int | float) and 0 <= value < 2**33:
        return f"{value} ({time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(value))})"
    return value if isinstance(value, str) else repr(value)
