"""Servers as their settings have them: how much of the gateway each may take, and who we are there.

Rule upheld here: with several servers, one that hangs cannot have all of the calls that the gateway
takes on, however much its own settings allow it.
"""

from typing import TYPE_CHECKING

from trunkline.config import Config, ServerSettings
from trunkline.config.oauth_table import OAuthSettings
from trunkline.gateway.gateway import MAX_CALLS
from trunkline.gateway.settings import Settings

if TYPE_CHECKING:
    from trunkline.backends.oauth import Grant, OAuthCredentials


def settings_of(server: ServerSettings, config: Config) -> Settings:
    """Return what the settings say about one server."""
    share = share_of(config)
    at_once = min(server.max_in_flight, share)
    return Settings(
        name=server.name,
        prefix=server.shown_prefix,
        timeout=server.timeout,
        start_timeout=server.start_timeout,
        max_restarts=server.max_restarts,
        max_in_flight=at_once,
        max_conversations=server.max_conversations,
        max_queue=min(server.max_queue, share - at_once),
        breaker_threshold=server.breaker_threshold,
        breaker_recovery=server.breaker_recovery,
        ping_interval=0.0 if server.kind == "builtin" else server.ping_interval,
    )


def share_of(config: Config) -> int:
    """Return how many calls may be with one server, waiting or under way."""
    http = config.http
    taken_on = min(http.max_in_flight, http.max_in_flight_per_principal, MAX_CALLS)
    several = sum(not server.disabled for server in config.servers) > 1
    return max(1, taken_on // 2) if several else taken_on


def credentials_of(oauth: OAuthSettings | None) -> "OAuthCredentials | None":
    """Return what gets tokens for a server, if the settings name somebody who gives them out."""
    if oauth is None:
        return None
    from trunkline.backends.oauth import OAuthCredentials  # noqa: PLC0415  who has none need not wait

    return OAuthCredentials(grant_of(oauth))


def grant_of(oauth: OAuthSettings) -> "Grant":
    """Return what is said to somebody who gives out tokens."""
    from trunkline.backends.oauth import Grant  # noqa: PLC0415  see above

    wishes = {"scope": oauth.scope, "audience": oauth.audience, "resource": oauth.resource}
    return Grant(
        token_url=oauth.token_url,
        client_id=oauth.client_id,
        client_secret=oauth.client_secret or "",
        in_form=oauth.auth == "post",
        wishes={key: value for key, value in wishes.items() if value is not None},
    )
