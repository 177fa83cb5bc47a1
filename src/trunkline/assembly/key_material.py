"""Key material: the files and addresses that `[auth]` names keys in, and whether they are any good.

    AuthSettings ──> examine_keys ──> what each setting names: how much is in it, or what is wrong

Refuses to ask an issuer: of a url only the form is known, and that is said. Nothing of a key is
told, nor a password in a url.
"""

import time
from collections import Counter
from pathlib import Path

from msgspec import Struct

from trunkline.auth.key_file import BadKeyFile, read_keys
from trunkline.auth.key_sets import read_key_set
from trunkline.config import AuthSettings
from trunkline.files import Exposed
from trunkline.journal.redact import without_credentials


class Material(Struct, frozen=True):
    """What one setting names, and how it is."""

    setting: str
    place: str
    ok: bool
    told: str
    """What is there; or what is wrong, and what to do."""


def examine_keys(auth: AuthSettings | None) -> tuple[Material, ...]:
    """Look into all that there is on this machine."""
    found: list[Material] = []
    if auth is not None and auth.keys is not None:
        found.append(_key_file(auth.keys))
    if auth is not None and auth.jwt is not None:
        if auth.jwt.jwks_file is not None:
            found.append(_key_set(auth.jwt.jwks_file))
        if auth.jwt.jwks_url is not None:
            told = "only its form is checked; nobody is asked before `serve` does"
            place = without_credentials(auth.jwt.jwks_url)
            found.append(Material("auth.jwt.jwks_url", place, True, told))
    return tuple(found)


def _key_file(path: Path) -> Material:
    try:
        records = read_keys(path)
    except BadKeyFile as why:
        return Material("auth.key.file", str(path), False, _after(path, str(why)))
    if not records:
        told = "no keys, so that nobody comes in with one; `trunkline key add` makes them"
        return Material("auth.key.file", str(path), True, told)
    now = time.time()
    states = Counter(record.state(now) for record in records)
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return Material("auth.key.file", str(path), True, told)


def _key_set(path: Path) -> Material:
    fix = "put the issuer's public keys into it, as a JWKS"
    try:
        count = len(read_key_set(path))
        wrong = "" if count else "expected a key that can verify signatures, got none"
    except Exposed as why:  # which has a remedy of its own
        return Material("auth.jwt.jwks_file", str(path), False, str(why))
    except OSError as why:
        count, wrong = 0, f"cannot be read: {(why.strerror or str(why)).lower()}"
    except ValueError as why:
        count, wrong = 0, str(why)
    told = f"{wrong}; {fix}" if wrong else f"{count} that can be used"
    return Material("auth.jwt.jwks_file", str(path), not wrong, told)


def _after(path: Path, message: str) -> str:
    """Return a message without the place that it begins with."""
    return message.removeprefix(f"{path}: ")
