"""The `[auth]` table: which credentials the gateway accepts.

    [auth] ── check_auth ──> errors ── resolve_auth ──> AuthSettings, with secrets

Tokens are verified elsewhere, and no issuer is contacted here.

Invariants:
1. The HS256 secret is in an environment variable, never in the file, and has at least 32 bytes.
2. Authentication is off only if the file says so, and then only on loopback.
3. Public keys are fetched over TLS or from this machine.
4. The repr of the settings shows no secret.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast

import msgspec
from msgspec import Meta, Struct

from trunkline.config.addresses import (
    CREDENTIALS_IN_URL,
    has_credentials,
    is_confidential,
    public_mcp_url,
)
from trunkline.config.references import (
    ResolveContext,
    check_readable,
    resolve_path,
    with_absolute_paths,
)
from trunkline.documents.errors import AddError, ErrorCollector, KeyPath
from trunkline.documents.formats import (
    NOT_BLANK_PATTERN,
    EnvName,
    NonBlankText,
    text_format,
    text_format_in_union,
)
from trunkline.documents.parser import Table, as_table, get_table

MIN_SECRET_BYTES = 32

# The issuer and audience of tokens from `trunkline token mint`, unless configured.
DEFAULT_ISSUER = "trunkline"

# The environment variable with the token or API key of a stdio client.
TOKEN_VARIABLE = "TRUNKLINE_TOKEN"  # noqa: S105  the name of a variable, not a secret

# The table of each mode.
_MODE_TABLES = {"jwt": "jwt", "api_key": "api_keys"}

_KEY_SOURCES = ("secret_env", "jwks_url", "jwks_file")

SingleText = Annotated[str, text_format_in_union(NOT_BLANK_PATTERN, "text that is not blank")]
HttpUrl = Annotated[
    str,
    text_format(r"^https?://[^/\s?#\x22\\]+[^\s#\x22\\]*$", 'a url, such as "https://id.example"'),
]
ScopeText = Annotated[
    str,
    text_format(
        r"^[\x21\x23-\x5b\x5d-\x7e]+$",  # RFC 6749, 3.3
        'one scope, without spaces and quotes, such as "mcp:tools"',
    ),
]


class JwtTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens are accepted; set exactly one of secret_env, jwks_url and jwks_file."""

    issuer: Annotated[
        NonBlankText | None,
        Meta(
            description=(
                "The exact issuer (`iss`) of tokens. "
                'Default: "trunkline" with secret_env, else required.'
            )
        ),
    ] = None
    audience: Annotated[
        SingleText | tuple[NonBlankText, ...] | None,
        Meta(
            description=(
                "The accepted audiences (`aud`). "
                'Default: the URL of MCP, or "trunkline" with secret_env.'
            )
        ),
    ] = None
    secret_env: Annotated[
        EnvName | None,
        Meta(
            description=("The environment variable with the secret of HS256 tokens. Default: none.")
        ),
    ] = None
    jwks_url: Annotated[
        HttpUrl | None,
        Meta(description=("The URL of the issuer's public keys (JWKS). Default: none.")),
    ] = None
    jwks_file: Annotated[
        NonBlankText | None,
        Meta(description=("A file with the issuer's public keys (JWKS). Default: none.")),
    ] = None
    jwks_refresh: Annotated[
        float,
        Meta(ge=10, le=86400, description="Seconds after which the keys are fetched again."),
    ] = 300.0
    role_claim: Annotated[
        NonBlankText,
        Meta(description="The claim with the role or roles; dots address nested claims."),
    ] = "role"
    clock_skew: Annotated[
        float, Meta(ge=0, le=300, description="Seconds by which clocks may differ.")
    ] = 30.0
    authorization_servers: Annotated[
        tuple[HttpUrl, ...],
        Meta(
            description=(
                "The authorization servers in the metadata. Default: the issuer, if it is a URL."
            )
        ),
    ] = ()


class ApiKeysTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where API keys of `trunkline key add` are stored."""

    file: Annotated[NonBlankText, Meta(description="The file with the digests of the keys.")] = (
        "keys.json"
    )


class AuthTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may connect; without this table any local user can."""

    KEY_FIXES: ClassVar[Mapping[str, str]] = {"key": "write [auth.api_keys]"}

    mode: Annotated[
        Literal["jwt", "api_key", "none"] | tuple[Literal["jwt", "api_key"], ...] | None,
        Meta(
            description=(
                'The accepted credentials, or "none". Default: the modes that have a table.'
            )
        ),
    ] = None
    resource: Annotated[
        HttpUrl | None,
        Meta(
            description=(
                "The URL of MCP, as issuers name it. Default: http.public_url and http.path."
            )
        ),
    ] = None
    required_scopes: Annotated[
        tuple[ScopeText, ...], Meta(description="Scopes that every token needs.")
    ] = ()
    max_failures: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Invalid tokens per minute from one address."),
    ] = 60
    jwt: Annotated[JwtTable | None, Meta(description=JwtTable.__doc__)] = None
    api_keys: Annotated[ApiKeysTable | None, Meta(description=ApiKeysTable.__doc__)] = None


class JwtSettings(Struct, frozen=True, kw_only=True):
    """Which tokens are accepted, with defaults and the secret filled in."""

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
    """Who may connect; everyone if there is neither `jwt` nor `api_keys`."""

    jwt: JwtSettings | None = None
    # The file with digests of API keys.
    api_keys: Path | None = None
    resource: str | None = None
    required_scopes: tuple[str, ...] = ()
    max_failures: int = 60

    @property
    def is_required(self) -> bool:
        """Whether callers must authenticate."""
        return self.jwt is not None or self.api_keys is not None


def auth_modes(table: Table) -> tuple[str, ...]:
    """Return the accepted credentials: `mode`, or else those that have a table.

    If a word in `mode` is misspelt, it may mean any of the tables: these are checked as well.
    """
    mode, tabled = table.get("mode"), [m for m, key in _MODE_TABLES.items() if key in table]
    if mode is None:
        return tuple(tabled)
    words = cast("list[object]", mode) if isinstance(mode, list) else [mode]
    known = [each for each in _MODE_TABLES if each in words]
    is_misspelt = any(each not in (*_MODE_TABLES, "none") for each in words)
    return tuple(dict.fromkeys((*known, *tabled))) if is_misspelt else tuple(known)


def check_auth(tree: Table, report: ErrorCollector) -> None:
    """Report errors that need no environment; values of wrong type are skipped."""
    table = as_table(tree.get("auth"))
    if table is None:
        return
    add_error, modes = report.add_error, auth_modes(table)
    public_url = public_mcp_url(get_table(tree, "http"))
    if table.get("mode") == "none":
        fix = 'set "jwt" or "api_key" unless every local user may call everything'
        report.add_note(("auth", "mode"), "any local user can connect", fix)
    # To go without authentication must be a decision: an empty [auth] is an error.
    elif not modes and table.get("mode") in (None, []):  # otherwise the type is wrong
        add_error(
            ("auth",), "no credentials are configured", 'set mode to "api_key", "jwt" or "none"'
        )
    if "jwt" in modes and "jwt" not in table:
        add_error(("auth", "mode"), "there is no table for jwt", "add [auth.jwt]")
    elif "jwt" in modes:
        has_resource = "resource" in table or public_url is not None
        _check_jwt(get_table(table, "jwt"), has_resource, add_error)
    if table.get("required_scopes") and "jwt" not in modes:
        fix = 'leave it out, or add "jwt" to mode'
        add_error(("auth", "required_scopes"), "only tokens have scopes", fix)
    _check_public_urls(table, add_error)
    resource = table.get("resource")
    if isinstance(resource, str) and public_url is not None and resource != public_url:
        # RFC 9728, 3.3: they compare the resource with the URL that they used.
        reason = f"differs from the URL of http.public_url, {public_url}; OAuth clients refuse that"
        report.add_note(("auth", "resource"), reason, "leave it out")


def _check_public_urls(table: Table, add_error: AddError) -> None:
    """Report passwords in URLs of the public metadata."""
    public_urls: dict[KeyPath, object] = {("auth", "resource"): table.get("resource")}
    servers = get_table(table, "jwt").get("authorization_servers")
    for number, url in enumerate(
        cast("list[object]", servers) if isinstance(servers, list) else ()
    ):
        public_urls["auth", "jwt", "authorization_servers", number] = url
    for path, url in public_urls.items():
        if has_credentials(url):
            reason = "it contains a user name or password, and it is public"
            add_error(path, reason, "remove it")


def _check_jwt(jwt: Table, has_resource: bool, add_error: AddError) -> None:
    sources = [key for key in _KEY_SOURCES if key in jwt]
    # One issuer only (docs/design/0016), so one source of keys.
    if len(sources) != 1:
        reason = "expected one of secret_env, jwks_url and jwks_file"
        add_error(("auth", "jwt"), f"{reason}, got {len(sources)}", "set exactly one")
    if "secret_env" not in jwt:
        if "issuer" not in jwt:
            add_error(("auth", "jwt"), '"issuer" is missing', "set the issuer of the tokens")
        if "audience" not in jwt and not has_resource:
            fix = "set it, or set http.public_url"
            add_error(("auth", "jwt"), '"audience" is missing', fix)
    if jwt.get("audience") == []:
        add_error(("auth", "jwt", "audience"), "expected at least one", "add one")
    url = jwt.get("jwks_url")
    # An attacker who replaces keys in transit could sign tokens that we accept.
    if isinstance(url, str) and not is_confidential(url):
        fix = "write https://; http:// is for this machine only"
        add_error(("auth", "jwt", "jwks_url"), "the keys could be changed in transit", fix)
    elif has_credentials(url):
        add_error(
            ("auth", "jwt", "jwks_url"), CREDENTIALS_IN_URL, "remove it: these keys are public"
        )


def resolve_auth(
    tree: Table, context: ResolveContext, report: ErrorCollector
) -> AuthSettings | None:
    """Return the settings of a checked table; report missing variables and files."""
    table = as_table(tree.get("auth"))
    if table is None:
        return None
    modes, jwt = auth_modes(table), get_table(table, "jwt")
    public_url = public_mcp_url(get_table(tree, "http"))
    secret = _read_secret(jwt, context, report.add_error) if "jwt" in modes else None
    if "jwt" in modes and isinstance(name := jwt.get("jwks_file"), str):
        # Only opened here: the keys are parsed when the authenticator is built.
        check_readable(resolve_path(name, context), ("auth", "jwt", "jwks_file"), report.add_error)
    try:
        found = msgspec.convert(table, AuthTable)
    except msgspec.ValidationError:
        return None  # already reported
    return AuthSettings(
        jwt=_jwt_settings(found, secret, context, public_url)
        if "jwt" in modes and found.jwt
        else None,
        api_keys=resolve_path((found.api_keys or ApiKeysTable()).file, context)
        if "api_key" in modes
        else None,
        resource=found.resource,
        required_scopes=found.required_scopes,
        max_failures=found.max_failures,
    )


def portable_auth(table: Table, folder: Path) -> Table:
    """Return the table with absolute paths."""
    inner = {name: get_table(table, name) for name in _MODE_TABLES.values() if name in table}
    rest = {key: value for key, value in table.items() if key not in inner}
    # The default file is relative as well, so it must be written out.
    if "api_key" in auth_modes(table):
        inner["api_keys"] = {"file": ApiKeysTable().file} | inner.get("api_keys", {})
    files = ("jwks_file", "file")
    return rest | {name: with_absolute_paths(each, files, folder) for name, each in inner.items()}


def _read_secret(jwt: Table, context: ResolveContext, add_error: AddError) -> bytes | None:
    name = jwt.get("secret_env")
    if not isinstance(name, str):
        return None
    value = context.environ.get(name)
    # os.environ decodes other bytes than UTF-8 to surrogates; this restores the bytes.
    secret = (value or "").encode("utf-8", "surrogateescape")
    if value is None:
        reason, fix = f"the variable {name} is not set", "set it to 32 random bytes or more"
    elif len(secret) < MIN_SECRET_BYTES:
        reason = (
            f"expected a secret of at least {MIN_SECRET_BYTES} bytes in {name}, got {len(secret)}"
        )
        fix = "make one: openssl rand -base64 48"
    else:
        return secret
    add_error(("auth", "jwt", "secret_env"), reason, fix)
    return None


def _jwt_settings(
    auth: AuthTable, secret: bytes | None, context: ResolveContext, public_url: str | None
) -> JwtSettings:
    jwt = auth.jwt or JwtTable()
    # Clients request a token for the resource (RFC 8707), so it is the default audience.
    audience = jwt.audience or auth.resource or public_url or DEFAULT_ISSUER
    issuer = jwt.issuer or DEFAULT_ISSUER
    # The metadata lists issuers by URL (RFC 9728, 2).
    is_url = issuer.startswith(("https://", "http://"))
    return JwtSettings(
        issuer=issuer,
        audiences=(audience,) if isinstance(audience, str) else audience,
        secret=secret,
        jwks_url=jwt.jwks_url,
        jwks_file=resolve_path(jwt.jwks_file, context) if jwt.jwks_file else None,
        jwks_refresh=jwt.jwks_refresh,
        role_claim=jwt.role_claim,
        clock_skew=jwt.clock_skew,
        authorization_servers=jwt.authorization_servers or ((issuer,) if is_url else ()),
    )
