"""The parts of authentication: verifier, authenticator and the check of key files.

AuthSettings ──> Verifier ──> build_authenticator, for HTTP clients
──> identify_stdio, for the process that started us
──> examine_keys, for `trunkline check`
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from trunkline.audit.redaction import redact_uri
from trunkline.auth.api_keys import ApiKeyFile, KeyFileError, read_key_file
from trunkline.auth.authenticator import ProtectedResource, TokenAuthenticator
from trunkline.auth.claims import AuthenticationError, ClaimsValidator
from trunkline.auth.key_sets import FileKeySet, KeySource, RemoteKeySet, SharedSecret, read_key_set
from trunkline.auth.signatures import secret_key
from trunkline.auth.tokens import JwtVerifier, TokenVerifier
from trunkline.config import AuthSettings, Config, HttpSettings, JwtSettings
from trunkline.config.auth_table import TOKEN_VARIABLE
from trunkline.files import WritableByOthers
from trunkline.mcp.identity import Principal


def build_verifier(auth: AuthSettings) -> TokenVerifier:
    """Return the verifier of tokens and API keys; raises ValueError for invalid files."""
    tokens = None
    if auth.jwt is not None:
        tokens = JwtVerifier(
            build_expected_claims(auth.jwt, auth.required_scopes), _build_key_source(auth.jwt)
        )
    return TokenVerifier(tokens, ApiKeyFile(auth.api_keys) if auth.api_keys is not None else None)


def build_expected_claims(jwt: JwtSettings, scopes: tuple[str, ...] = ()) -> ClaimsValidator:
    """Return the claims that a token must have."""
    return ClaimsValidator(
        issuer=jwt.issuer,
        audiences=frozenset(jwt.audiences),
        role_claim=jwt.role_claim,
        skew=jwt.clock_skew,
        scopes=frozenset(scopes),
    )


def _build_key_source(jwt: JwtSettings) -> KeySource:
    if jwt.secret is not None:
        return SharedSecret(secret_key(jwt.secret))
    if jwt.jwks_file is not None:
        try:
            return FileKeySet(jwt.jwks_file)
        except (OSError, ValueError) as error:
            raise ValueError(f"{jwt.jwks_file}: {error}") from None
    return RemoteKeySet(str(jwt.jwks_url), jwt.jwks_refresh)


def build_authenticator(
    auth: AuthSettings, http: HttpSettings, on_rejected: Callable[[str, str], None]
) -> TokenAuthenticator:
    """Return the authenticator for HTTP; `on_rejected` is called for failed logins."""
    resource = ProtectedResource(
        url=auth.resource,
        base=None if http.public is None else http.public.base,
        path=http.path,
        secure=http.tls_cert is not None,
        authorization_servers=auth.jwt.authorization_servers if auth.jwt else (),
        scopes=auth.required_scopes,
    )
    return TokenAuthenticator(build_verifier(auth), resource, auth.max_failures, on_rejected)


async def identify_stdio(auth: AuthSettings, environ: Mapping[str, str]) -> Principal:
    """Return the caller of this process by its token; raises ValueError with a remedy."""
    token = environ.get(TOKEN_VARIABLE, "").strip()
    remedy = f"put a good token or key into the variable {TOKEN_VARIABLE}"
    if not token:
        raise ValueError(f"a token is required; {remedy}")
    try:
        return (await build_verifier(auth).verify(token)).principal
    except AuthenticationError as error:
        raise ValueError(f"{TOKEN_VARIABLE}: {error.reason}; {remedy}") from None


class KeyMaterial(Struct, frozen=True):
    """The state of one key file or URL."""

    setting: str
    location: str
    ok: bool
    # The number of keys and their state, or the problem and its fix.
    detail: str


def examine_keys(auth: AuthSettings | None) -> tuple[KeyMaterial, ...]:
    """Check all key files; URLs are not fetched. Key values and passwords are never shown."""
    found: list[KeyMaterial] = []
    if auth is not None and auth.api_keys is not None:
        found.append(_examine_key_file(auth.api_keys))
    if auth is not None and auth.jwt is not None:
        if auth.jwt.jwks_file is not None:
            found.append(_examine_key_set(auth.jwt.jwks_file))
        if auth.jwt.jwks_url is not None:
            # A check should succeed without network access to the issuer.
            detail = "not fetched; `serve` fetches it"
            location = redact_uri(auth.jwt.jwks_url)
            found.append(KeyMaterial("auth.jwt.jwks_url", location, True, detail))
    return tuple(found)


def find_role_warnings(config: Config) -> tuple[str, ...]:
    """Return a warning for each role of a valid key that the configuration does not know."""
    auth = config.auth
    if auth is None or auth.api_keys is None:
        return ()
    try:
        records = read_key_file(auth.api_keys)
    except KeyFileError:
        return ()  # examine_keys reports it
    now, owners = time.time(), dict[str, str]()
    for record in records:
        if record.state(now) == "good":
            owners |= {role: record.id for role in record.roles if role not in owners}
    return tuple(
        f"key {owner}: {warning}"
        for role, owner in owners.items()
        for warning in config.policy.role_warnings((role,))
    )


def _examine_key_file(path: Path) -> KeyMaterial:
    try:
        records = read_key_file(path)
    except KeyFileError as error:
        return KeyMaterial("auth.api_keys.file", str(path), False, _without_path(path, str(error)))
    if not records:
        detail = "no keys; create one with `trunkline key add`"
        return KeyMaterial("auth.api_keys.file", str(path), True, detail)
    now = time.time()
    states = Counter(record.state(now) for record in records)
    detail = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return KeyMaterial("auth.api_keys.file", str(path), True, detail)


def _examine_key_set(path: Path) -> KeyMaterial:
    fix = "put the issuer's public keys into it, as a JWKS"
    try:
        count = len(read_key_set(path))
        problem = "" if count else "expected a key that can verify signatures, got none"
    except WritableByOthers as error:  # its message has a remedy
        return KeyMaterial("auth.jwt.jwks_file", str(path), False, str(error))
    except OSError as error:
        count, problem = 0, f"cannot be read: {(error.strerror or str(error)).lower()}"
    except ValueError as error:
        count, problem = 0, str(error)
    detail = f"{problem}; {fix}" if problem else f"{count} usable"
    return KeyMaterial("auth.jwt.jwks_file", str(path), not problem, detail)


def _without_path(path: Path, message: str) -> str:
    return message.removeprefix(f"{path}: ")
