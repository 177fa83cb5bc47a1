"""The `[auth]` table: who is asked for what, before anybody may call anything.

    [auth] ── check_auth ──> complaints ── fill_auth ──> AuthSettings, secrets and all

Refuses to verify anything, and to ask an issuer: whoever uses the settings does.

Rules upheld here:
1. Secrets stand in variables, never in the file; one that can be guessed is refused.
2. Nobody is asked only where that is said, and only on loopback.
3. Keys are fetched over TLS, or from this machine: whoever could change them could be anybody.
4. Printing the settings shows no secret.
"""

from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct

from trunkline.config.addresses import UNSENT, is_safe, names_user
from trunkline.config.forms import NOT_BLANK, EnvName, Text, form, form_beside_list
from trunkline.config.paths import anchored, check_readable, path_from
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Complain, Report
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, as_table, table_in

MIN_SECRET = 32
"""How many bytes a secret has at least."""

OURS = "trunkline"
"""The issuer and the audience of tokens that `trunkline token mint` makes, unless set."""

_SOURCES = ("secret_env", "jwks_url", "jwks_file")

OneText = Annotated[str, form_beside_list(NOT_BLANK, "text that is not blank")]
Url = Annotated[
    str,
    form(r"^https?://[^/\s?#\x22\\]+[^\s#\x22\\]*$", 'a url, such as "https://id.example"'),
]
Scope = Annotated[
    str,
    form(
        r"^[\x21\x23-\x5b\x5d-\x7e]+$",  # RFC 6749, 3.3
        'one scope, without spaces and quotes, such as "mcp:tools"',
    ),
]


class JwtTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens are good; exactly one of secret_env, jwks_url and jwks_file must be set."""

    issuer: Annotated[
        Text | None,
        Meta(description='Who gives out the tokens (`iss`); "trunkline" beside a secret_env.'),
    ] = None
    audience: Annotated[
        OneText | tuple[Text, ...] | None,
        Meta(description="For whom they must be (`aud`): one of these; the resource unless set."),
    ] = None
    secret_env: Annotated[
        EnvName | None, Meta(description="The variable that has the secret, for HS256.")
    ] = None
    jwks_url: Annotated[
        Url | None, Meta(description="Where the issuer has its public keys, as a JWKS.")
    ] = None
    jwks_file: Annotated[Text | None, Meta(description="A file with the issuer's JWKS.")] = None
    jwks_refresh: Annotated[
        float,
        Meta(ge=10, le=86400, description="Seconds after which the issuer is asked again."),
    ] = 300.0
    role_claim: Annotated[
        Text,
        Meta(description="The claim with the role, or the roles; dots lead into a claim."),
    ] = "role"
    clock_skew: Annotated[
        float, Meta(ge=0, le=300, description="Seconds by which clocks may differ.")
    ] = 30.0
    authorization_servers: Annotated[
        tuple[Url, ...],
        Meta(description="Who gives out tokens, for clients to read; the issuer unless set."),
    ] = ()


class KeyTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the keys are that `trunkline key add` gives out."""

    file: Annotated[
        Text, Meta(description="The file, seen from the config file; it has digests only.")
    ] = "keys.json"


class AuthTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is asked for what; without it, loopback serves everybody, and nothing else is served."""

    mode: Annotated[
        Literal["jwt", "key", "none"] | tuple[Literal["jwt", "key"], ...] | None,
        Meta(description='What is accepted; what has a table unless set. "none": nobody is asked.'),
    ] = None
    resource: Annotated[
        Url | None,
        Meta(description="Where clients reach MCP, for issuers; as each client does unless set."),
    ] = None
    required_scopes: Annotated[
        tuple[Scope, ...], Meta(description="What every token must have been issued for.")
    ] = ()
    max_failures: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Bad tokens from one address in a minute."),
    ] = 60
    jwt: Annotated[JwtTable | None, Meta(description=JwtTable.__doc__)] = None
    key: Annotated[KeyTable | None, Meta(description=KeyTable.__doc__)] = None


class JwtSettings(Struct, frozen=True, kw_only=True):
    """Which tokens are good, with everything filled in."""

    issuer: str
    audiences: tuple[str, ...]
    secret: bytes | None = None
    jwks_url: str | None = None
    jwks_file: Path | None = None
    jwks_refresh: float = 300.0
    role_claim: str = "role"
    clock_skew: float = 30.0
    authorization_servers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"JwtSettings({self.issuer!r}, …)"


class AuthSettings(Struct, frozen=True, kw_only=True):
    """Who is asked for what; nobody is asked if there is neither `jwt` nor `keys`."""

    jwt: JwtSettings | None = None
    keys: Path | None = None
    """The file of keys."""
    resource: str | None = None
    required_scopes: tuple[str, ...] = ()
    max_failures: int = 60

    @property
    def asks(self) -> bool:
        """Tell whether anybody is asked."""
        return self.jwt is not None or self.keys is not None


def modes_of(table: Table) -> tuple[str, ...]:
    """Return what is accepted: what `mode` says, or else what there are tables for."""
    mode = table.get("mode")
    if isinstance(mode, list):
        return tuple(map(str, cast("list[object]", mode)))
    if mode is None:
        return tuple(key for key in ("jwt", "key") if key in table)
    return (mode,) if mode in ("jwt", "key") else ()


def check_auth(tree: Table, report: Report) -> None:
    """Complain about all that can be told without looking; what breaks the types is passed over."""
    table = as_table(tree.get("auth"))
    if table is None:
        return
    complain, modes = report.error, modes_of(table)
    if table.get("mode") == "none":
        fix = 'name "jwt" or "key" unless everybody on this machine may call everything'
        report.note(("auth", "mode"), "nobody is asked who they are", fix)
    elif not modes and table.get("mode") in (None, []):  # all else breaks the type
        complain(("auth",), "nothing says who is let in", 'set mode to "key", "jwt" or "none"')
    if "jwt" in modes and "jwt" not in table:
        complain(("auth", "mode"), "there is no table for jwt", "add [auth.jwt]")
    elif "jwt" in modes:
        _check_jwt(table_in(table, "jwt"), "resource" in table, complain)
    if table.get("required_scopes") and "jwt" not in modes:
        fix = 'leave it out, or add "jwt" to mode'
        complain(("auth", "required_scopes"), "only tokens have scopes", fix)
    _check_shown(table, complain)


def _check_shown(table: Table, complain: Complain) -> None:
    """Complain of passwords in what everybody may read: the metadata for clients."""
    shown: dict[KeyPath, object] = {("auth", "resource"): table.get("resource")}
    servers = table_in(table, "jwt").get("authorization_servers")
    for number, url in enumerate(
        cast("list[object]", servers) if isinstance(servers, list) else ()
    ):
        shown["auth", "jwt", "authorization_servers", number] = url
    for path, url in shown.items():
        if names_user(url):
            why = "a name or a password is in it, and everybody is shown it"
            complain(path, why, "leave that out")


def _check_jwt(jwt: Table, has_resource: bool, complain: Complain) -> None:
    given = [key for key in _SOURCES if key in jwt]
    if len(given) != 1:
        why = "expected one of secret_env, jwks_url and jwks_file"
        complain(("auth", "jwt"), f"{why}, got {len(given)}", "say how tokens are signed")
    if "secret_env" not in jwt:
        if "issuer" not in jwt:
            complain(("auth", "jwt"), '"issuer" is missing', "say who gives out the tokens")
        if "audience" not in jwt and not has_resource:
            fix = "say for whom they must be; or set auth.resource, if that is it"
            complain(("auth", "jwt"), '"audience" is missing', fix)
    if jwt.get("audience") == []:
        complain(("auth", "jwt", "audience"), "expected at least one", "add one")
    url = jwt.get("jwks_url")
    if isinstance(url, str) and not is_safe(url):
        fix = "write https://; http:// is for this machine alone"
        complain(("auth", "jwt", "jwks_url"), "anybody on the way could change the keys", fix)
    elif names_user(url):
        complain(("auth", "jwt", "jwks_url"), UNSENT, "leave it out: these keys are public")


def fill_auth(tree: Table, around: Surroundings, report: Report) -> AuthSettings | None:
    """Return the settings of a table that was checked, complaining of what is not there."""
    table = as_table(tree.get("auth"))
    if table is None:
        return None
    modes, jwt = modes_of(table), table_in(table, "jwt")
    secret = _secret(jwt, around, report.error) if "jwt" in modes else None
    if "jwt" in modes and isinstance(name := jwt.get("jwks_file"), str):
        check_readable(path_from(name, around), ("auth", "jwt", "jwks_file"), report.error)
    try:
        found = msgspec.convert(table, AuthTable)
    except msgspec.ValidationError:
        return None  # which has been complained of
    return AuthSettings(
        jwt=_jwt(found, secret, around) if "jwt" in modes and found.jwt else None,
        keys=path_from((found.key or KeyTable()).file, around) if "key" in modes else None,
        resource=found.resource,
        required_scopes=found.required_scopes,
        max_failures=found.max_failures,
    )


def portable_auth(table: Table, folder: Path) -> Table:
    """Return the table as it can stand in any folder."""
    inner = {name: table_in(table, name) for name in ("jwt", "key") if name in table}
    rest = {key: value for key, value in table.items() if key not in inner}
    if "key" in modes_of(table):
        inner["key"] = {"file": KeyTable().file} | inner.get("key", {})
    files = ("jwks_file", "file")
    return rest | {name: anchored(each, files, folder) for name, each in inner.items()}


def _secret(jwt: Table, around: Surroundings, complain: Complain) -> bytes | None:
    name = jwt.get("secret_env")
    if not isinstance(name, str):
        return None
    value = around.environ.get(name)
    secret = (value or "").encode("utf-8", "surrogateescape")
    if value is None:
        why, fix = f"the variable {name} is not set", "set it to 32 random bytes or more"
    elif len(secret) < MIN_SECRET:
        why = f"expected a secret of at least {MIN_SECRET} bytes in {name}, got {len(secret)}"
        fix = "make one: openssl rand -base64 48"
    else:
        return secret
    complain(("auth", "jwt", "secret_env"), why, fix)
    return None


def _jwt(auth: AuthTable, secret: bytes | None, around: Surroundings) -> JwtSettings:
    jwt = auth.jwt or JwtTable()
    audience, issuer = jwt.audience or auth.resource or OURS, jwt.issuer or OURS
    is_url = issuer.startswith(("https://", "http://"))
    return JwtSettings(
        issuer=issuer,
        audiences=(audience,) if isinstance(audience, str) else audience,
        secret=secret,
        jwks_url=jwt.jwks_url,
        jwks_file=path_from(jwt.jwks_file, around) if jwt.jwks_file else None,
        jwks_refresh=jwt.jwks_refresh,
        role_claim=jwt.role_claim,
        clock_skew=jwt.clock_skew,
        authorization_servers=jwt.authorization_servers or ((issuer,) if is_url else ()),
    )
