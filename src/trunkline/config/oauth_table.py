"""The `[servers.NAME.oauth]` table, beyond the types of its keys: what must go together.

    oauth ── check_oauth ──> complaints ── fill_oauth ──> with its secret, wherever that stood

Refuses to fetch anything: whether the secret is one, whoever uses it finds out.

Rules upheld here:
1. There is one secret, and one way to say who the gateway is: no header does so as well.
2. A secret leaves this machine encrypted, or not at all.
3. No complaint shows a value: by now it may be a secret.
"""

import re
from urllib.parse import urlsplit

from trunkline.config.substitute import Surroundings
from trunkline.documents.errors import Complain
from trunkline.documents.parse import Table, as_table

_SECRETS = ("client_secret", "client_secret_env")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[^\x21-\x7e]")


def check_oauth(table: Table, complain: Complain) -> None:
    """Complain about what is wrong before anything is substituted."""
    oauth = as_table(table.get("oauth"))
    if oauth is None:
        return
    given = [key for key in _SECRETS if key in oauth]
    if not given:
        complain(("oauth",), "no secret", 'add client_secret_env = "…", the name of a variable')
    for other in given[1:]:
        complain(("oauth", other), f"{given[0]} is given as well", "keep one of the two")
    for name in as_table(table.get("headers")) or ():
        if name.lower() == "authorization":
            fix = "keep one of the two: oauth says who the gateway is"
            complain(("headers", name), "oauth is given as well", fix)


def fill_oauth(table: Table, around: Surroundings, complain: Complain) -> None:
    """Put the secret in its place, and complain where the values cannot be used."""
    oauth = as_table(table.get("oauth"))
    if oauth is None:
        return
    table["oauth"] = oauth = dict(oauth)
    name = oauth.get("client_secret_env")
    if isinstance(name, str) and "client_secret" not in oauth:
        secret = around.environ.get(name)
        if not secret:
            complain(("oauth", "client_secret_env"), f"the variable {name} is not set", "set it")
        else:
            oauth["client_secret"] = secret
    url = oauth.get("token_url")
    if isinstance(url, str) and not _is_safe(url):
        why = "expected https:// and a host, or http:// on this machine"
        complain(("oauth", "token_url"), why, "write the whole address")


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is none
    except ValueError:
        return False
    if _NOT_IN_URL.search(url) or not parts.hostname or parts.username is not None:
        return False
    return parts.scheme == "https" or (
        parts.scheme == "http" and _LOOPBACK.fullmatch(parts.hostname) is not None
    )
