"""`trunkline token`: tokens of our own, and what is to be thought of any token."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from trunkline.assembly.identity import expected_of, verifier_of
from trunkline.auth.minting import Wish, read_unverified
from trunkline.auth.minting import mint as mint_token
from trunkline.auth.proof import Unproven
from trunkline.cli.config_choice import choose_config
from trunkline.cli.screen import FAILED, WRONG, fail, print_json, print_lines, print_table, say
from trunkline.cli.when import read_duration
from trunkline.config import AuthSettings

MAX_INPUT = 64 * 1024


def mint(
    option: Path | None,
    subject: str,
    roles: tuple[str, ...],
    lifetime: str,
    scopes: tuple[str, ...],
) -> None:
    """Print a token, signed by the secret that the configuration names."""
    auth = choose_config(option).auth
    jwt = auth.jwt if auth is not None else None
    if auth is None or jwt is None:
        fail(FAILED, "the configuration accepts no tokens; set secret_env in [auth.jwt]")
    if jwt.secret is None:
        fail(FAILED, f"tokens come from {jwt.issuer}, which has the key; ask there for one")
    try:
        seconds = read_duration(lifetime)
    except ValueError as wrong:
        fail(WRONG, f"--ttl: {wrong}")
    wish = Wish(subject=subject, roles=roles, lifetime=seconds, scopes=scopes)
    expected = expected_of(jwt, auth.required_scopes)
    try:
        token = mint_token(wish, expected, jwt.audiences[0], jwt.secret, time.time())
    except Unproven as why:
        fail(WRONG, f"nobody would accept it: {why.why}")
    print_lines(token)
    say(f"trunkline: for {subject}, good for {lifetime}; whoever has it is taken for them")


def inspect(option: Path | None, token: str | None, as_json: bool) -> None:
    """Print what a token says, and whether it would be accepted here; of a key, whose it is."""
    auth = choose_config(option).auth
    given = (sys.stdin.read(MAX_INPUT) if token in {None, "-"} else token or "").strip()
    given = given.removeprefix("Bearer ").strip()
    found: dict[str, Any] = {}
    try:
        found = read_unverified(given)
        verdict = asyncio.run(_verdict(auth, given))
    except Unproven as why:
        verdict = {"good": False, "why": why.why}
    except (OSError, ValueError) as why:
        fail(FAILED, str(why))
    report = found | {"verdict": verdict}
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not verdict["good"]:
        raise SystemExit(FAILED)


async def _verdict(auth: AuthSettings | None, token: str) -> dict[str, Any]:
    if auth is None or not auth.asks:
        return {
            "good": False,
            "why": "the configuration asks nobody: it has no [auth], or mode none",
        }
    proof = await verifier_of(auth).verify(token)
    who = proof.principal
    return {
        "good": True,
        "id": who.id,
        "subject": who.subject,
        "roles": list(who.roles),
        "scopes": sorted(who.scopes),
    }


def _print(report: dict[str, Any]) -> None:
    for part in ("header", "claims"):
        rows = [(str(key), _text(key, value)) for key, value in report.get(part, {}).items()]
        if rows:
            print_table((part, ""), rows)
            print_lines("")
    verdict = report["verdict"]
    if not verdict["good"]:
        print_lines(f"not good: {verdict['why']}")
        return
    roles = ", ".join(verdict["roles"]) or "none"
    print_lines(f"good: {verdict['id']}, subject {verdict['subject']}, roles: {roles}")


def _text(key: str, value: Any) -> str:
    if key in {"exp", "iat", "nbf"} and isinstance(value, int | float) and 0 <= value < 2**33:
        return f"{value} ({time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(value))})"
    return value if isinstance(value, str) else repr(value)
