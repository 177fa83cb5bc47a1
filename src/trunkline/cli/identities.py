"""With which permissions a command acts: `--as`, `--role`, `TRUNKLINE_TOKEN`, or the local user."""

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from trunkline.app.local_clients import LocalIdentity
from trunkline.auth.api_keys import KeyFileError, read_key_file
from trunkline.cli.output import EXIT_FAILURE, EXIT_USAGE, fail, print_message
from trunkline.config import Config
from trunkline.config.auth_table import TOKEN_VARIABLE


class KeyOwner(NamedTuple):
    """The subject and the roles of an API key; both are unknown if there is no such key."""

    subject: str | None = None
    roles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_key_owner(config: Config, name: str) -> KeyOwner:
    """Return whose API key has this name, or the caller of this subject.

    Exits with 2 if the keys of the subject have different roles.
    """
    auth = config.auth
    if auth is None or auth.api_keys is None:
        return KeyOwner()
    try:
        records = read_key_file(auth.api_keys)
    except KeyFileError as error:
        return KeyOwner(notes=(f"the roles of {name} are not known: {error}",))
    now = time.time()
    good = [record for record in records if record.state(now) == "good"]
    # The name of a key is unique; a subject may have several keys.
    found = [each for each in good if each.id == name] or [s for s in good if s.subject == name]
    if not found:
        note = f"no valid key is named {name} or belongs to {name}; --role sets roles"
        return KeyOwner(notes=(note,))
    if len({record.roles for record in found}) > 1:
        keys = ", ".join(f"{each.id} ({', '.join(each.roles)})" for each in found)
        fail(EXIT_USAGE, f"--as: the keys of {name} have different roles: {keys}; name a key")
    return KeyOwner(found[0].subject, found[0].roles)


class IdentityOptions(NamedTuple):
    """The options `--as` and `--role`."""

    subject: str = ""
    roles: Sequence[str] = ()


def choose_identity(config: Config, options: IdentityOptions) -> LocalIdentity:
    """Return the identity that options and environment name; it may be none."""
    subject, roles = options.subject, tuple(options.roles)
    if not subject and not roles:
        return LocalIdentity(
            os.environ.get(TOKEN_VARIABLE, "").strip() if config.requires_auth else ""
        )
    notes: tuple[str, ...] = ()
    if subject and not roles:
        owner = find_key_owner(config, subject)
        subject, roles, notes = owner.subject or subject, owner.roles, owner.notes
    notes += config.policy.role_warnings(roles)
    print_message(*(f"trunkline: {note}" for note in notes))
    return LocalIdentity(subject=subject, roles=roles)


def require_identity(config: Config, identity: LocalIdentity) -> None:
    """Exit if calls need an identity and there is none."""
    if config.requires_auth and not identity.is_given:
        fail(
            EXIT_FAILURE,
            f"with [auth], a call needs an identity: set {TOKEN_VARIABLE} to a token or key, "
            "or use --as NAME or --role ROLE",
        )
