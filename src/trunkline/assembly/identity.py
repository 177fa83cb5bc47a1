"""Who is asked for what, as the `[auth]` settings have it: over HTTP, and over stdio.

AuthSettings ──> Verifier ──> guard_of, for those who come by HTTP
                          ──> identify_stdio, for whoever started this process
"""

from collections.abc import Callable, Mapping

from trunkline.auth.claims import Expected
from trunkline.auth.guard import TokenGuard
from trunkline.auth.key_file import KeyFile
from trunkline.auth.key_sets import FileKeys, KeySource, RemoteKeys, SharedSecret
from trunkline.auth.metadata import Resource
from trunkline.auth.proof import Unproven
from trunkline.auth.signatures import secret_key
from trunkline.auth.verifier import JwtVerifier, Verifier
from trunkline.config import AuthSettings, HttpSettings, JwtSettings
from trunkline.mcp.principal import Principal

VARIABLE = "TRUNKLINE_TOKEN"
"""The variable in which whoever starts us over stdio has a token, or a key."""


def verifier_of(auth: AuthSettings) -> Verifier:
    """Return what tells whose a token or a key is; raises ValueError for files that are no good."""
    tokens = None
    if auth.jwt is not None:
        tokens = JwtVerifier(expected_of(auth.jwt, auth.required_scopes), _source_of(auth.jwt))
    return Verifier(tokens, KeyFile(auth.keys) if auth.keys is not None else None)


def expected_of(jwt: JwtSettings, scopes: tuple[str, ...] = ()) -> Expected:
    """Return what the settings say about what tokens must say."""
    return Expected(
        issuer=jwt.issuer,
        audiences=frozenset(jwt.audiences),
        role_claim=jwt.role_claim,
        skew=jwt.clock_skew,
        scopes=frozenset(scopes),
    )


def _source_of(jwt: JwtSettings) -> KeySource:
    if jwt.secret is not None:
        return SharedSecret(secret_key(jwt.secret))
    if jwt.jwks_file is not None:
        try:
            return FileKeys(jwt.jwks_file)
        except (OSError, ValueError) as why:
            raise ValueError(f"{jwt.jwks_file}: {why}") from None
    return RemoteKeys(str(jwt.jwks_url), jwt.jwks_refresh)


def guard_of(
    auth: AuthSettings, http: HttpSettings, tell: Callable[[str, str], None]
) -> TokenGuard:
    """Return what asks those who come by HTTP; `tell` hears of those who are turned away."""
    resource = Resource(
        url=auth.resource,
        path=http.path,
        secure=http.certificate is not None,
        servers=auth.jwt.authorization_servers if auth.jwt else (),
        scopes=auth.required_scopes,
    )
    return TokenGuard(verifier_of(auth), resource, auth.max_failures, tell)


async def identify_stdio(auth: AuthSettings, environ: Mapping[str, str]) -> Principal:
    """Return who started this process; raises ValueError, with a remedy, unless that is proven."""
    token = environ.get(VARIABLE, "").strip()
    remedy = f"put a good token or key into the variable {VARIABLE}"
    if not token:
        raise ValueError(f"nobody is let in without a token; {remedy}")
    try:
        return (await verifier_of(auth).verify(token)).principal
    except Unproven as why:
        raise ValueError(f"{VARIABLE}: {why.why}; {remedy}") from None
