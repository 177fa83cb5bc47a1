"""Servers with a `url`: MCP over Streamable HTTP or HTTP+SSE."""

from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field

from trunkline.backends.kind import BackendSettings, ConnectContext, ProtocolKey
from trunkline.documents.formats import EnvName, HeaderName, NonBlankText
from trunkline.gateway.backend import Backend, BackendOwner, ConnectBackend
from trunkline.printable import secrets_in_arguments

if TYPE_CHECKING:
    from trunkline.backends.oauth import ClientCredentials, OAuthCredentials


class OAuthSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OAuth 2 client credentials for a server."""

    token_url: Annotated[
        NonBlankText,
        Meta(description="The token endpoint: https://, or http:// on loopback."),
    ]
    client_id: Annotated[NonBlankText, Meta(description="The client id of the gateway.")]
    client_secret: Annotated[
        NonBlankText | None, Meta(description="The client secret; write ${VAR} or ${file:…}.")
    ] = None
    client_secret_env: Annotated[
        EnvName | None, Meta(description="The environment variable with the client secret.")
    ] = None
    auth: Annotated[
        Literal["basic", "post"],
        Meta(description="How the secret is sent: in a header, or in the form."),
    ] = "basic"
    scope: Annotated[
        NonBlankText | None, Meta(description="The requested scope. Default: none.")
    ] = None
    audience: Annotated[
        NonBlankText | None,
        Meta(description="The requested audience. Default: none."),
    ] = None
    resource: Annotated[
        NonBlankText | None,
        Meta(description="The requested resource (RFC 8707): a URL. Default: none."),
    ] = None

    def __repr__(self) -> str:
        return f"OAuthSettings({self.token_url!r}, …)"


class UrlSettings(BackendSettings, frozen=True, kw_only=True):
    """The keys of a server at a URL."""

    url: Annotated[
        NonBlankText, Meta(description="The URL of a remote server: http:// or https://.")
    ]
    headers: Annotated[
        dict[HeaderName, str], Meta(description="Headers of every request to the url.")
    ] = field(default_factory=dict[str, str])
    oauth: Annotated[
        OAuthSettings | None,
        Meta(description="OAuth 2 client credentials for the url."),
    ] = None
    protocol: ProtocolKey = "auto"

    def connector(self, context: ConnectContext) -> ConnectBackend:
        """Return a function that connects to the URL; all its connections share their token."""
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        era_cache, credentials = context.era_cache(self.url), create_credentials(self.oauth)

        async def connect(owner: BackendOwner) -> Backend:
            from trunkline.backends.connect import HttpConnector  # noqa: PLC0415

            connector = HttpConnector(
                self.url, headers, self.protocol, era_cache, credentials, limits=context.limits
            )
            return await connector.connect(context.client_identity(owner))

        return connect

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of its headers, its OAuth secret, and what looks like a secret in its URL."""
        secret = self.oauth.client_secret if self.oauth else None
        in_url = secrets_in_arguments((self.url,))
        return (*self.headers.values(), *([secret] if secret else []), *in_url)

    @property
    def span_attributes(self) -> dict[str, str | int]:
        """HTTP, and the host and port of the URL."""
        parts = urlsplit(self.url)
        return {
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "server.address": parts.hostname or "",
            "server.port": parts.port or (443 if parts.scheme == "https" else 80),
        }


def create_credentials(oauth: OAuthSettings | None) -> "OAuthCredentials | None":
    """Return the source of OAuth tokens for a server, None without `oauth`."""
    if oauth is None:
        return None
    from trunkline.backends.oauth import OAuthCredentials  # noqa: PLC0415

    return OAuthCredentials(client_credentials(oauth))


def client_credentials(oauth: OAuthSettings) -> "ClientCredentials":
    """Return the token request."""
    from trunkline.backends.oauth import ClientCredentials  # noqa: PLC0415

    parameters = {"scope": oauth.scope, "audience": oauth.audience, "resource": oauth.resource}
    return ClientCredentials(
        token_url=oauth.token_url,
        client_id=oauth.client_id,
        client_secret=oauth.client_secret or "",
        secret_in_form=oauth.auth == "post",
        token_params={key: value for key, value in parameters.items() if value is not None},
    )
