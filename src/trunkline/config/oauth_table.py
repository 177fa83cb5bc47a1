"""The `[servers.NAME.oauth]` table: how the gateway gets tokens, and what must go together.

    oauth ── check_oauth ──> complaints ── fill_oauth ──> with its secret, wherever that stood

Refuses to fetch anything: whether the secret is one, whoever uses it finds out.

Rules upheld here:
1. There is one secret, and one way to say who the gateway is: no header does so as well.
2. A secret leaves this machine encrypted, or not at all.
3. No complaint shows a value: by now it may be a secret.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from trunkline.config.addresses import UNSENT, is_safe, is_web, names_user
from trunkline.config.forms import EnvName, Text
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Complain
from trunkline.documents.parse import Table, as_table

_SECRETS = ("client_secret", "client_secret_env")


class OAuthSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway gets tokens of its own for a server: OAuth 2 client credentials."""

    token_url: Annotated[
        Text, Meta(description="Where tokens are given out: https://, or http:// on loopback.")
    ]
    client_id: Annotated[Text, Meta(description="Who the gateway is to whoever gives out tokens.")]
    client_secret: Annotated[
        Text | None, Meta(description="The gateway's secret; write ${VAR} or ${file:…}.")
    ] = None
    client_secret_env: Annotated[
        EnvName | None, Meta(description="The variable that holds the gateway's secret.")
    ] = None
    auth: Annotated[
        Literal["basic", "post"],
        Meta(description="How the secret is sent: in a header, or in the form."),
    ] = "basic"
    scope: Annotated[Text | None, Meta(description="What the tokens are to be good for.")] = None
    audience: Annotated[
        Text | None, Meta(description="Whom the tokens are for, where that is asked for so.")
    ] = None
    resource: Annotated[
        Text | None, Meta(description="Whom the tokens are for, as RFC 8707 has it: a URL.")
    ] = None

    def __repr__(self) -> str:
        return f"OAuthSettings({self.token_url!r}, …)"


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
    if names_user(url):
        complain(("oauth", "token_url"), UNSENT, "put them into client_id and client_secret_env")
    elif isinstance(url, str) and not (url.isascii() and is_web(url) and is_safe(url)):
        why = "expected https:// and a host, or http:// on this machine"
        complain(("oauth", "token_url"), why, "write the whole address")
