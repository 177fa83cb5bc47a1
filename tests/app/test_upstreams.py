"""Building the settings of an upstream from the settings of its server."""

import pytest
from msgspec.structs import replace

from tests.app.test_identity import settings as auth_settings
from trunkline.app.build import (
    build_upstream_settings,
    max_calls_per_server,
)
from trunkline.backends.command import CommandSettings
from trunkline.backends.url import (
    OAuthSettings,
    UrlSettings,
    client_credentials,
    create_credentials,
)
from trunkline.config import Config, HttpSettings, ServerSettings
from trunkline.gateway.gateway import MAX_CALLS_PER_CONNECTION

BUSY = ServerSettings(
    name="busy", backend=CommandSettings(command="x"), max_in_flight=65536, max_queue=65536
)
OTHER = ServerSettings(name="other", backend=UrlSettings(url="https://x.example"))


def test_the_only_server_may_use_all_calls_of_a_connection() -> None:
    config = Config(
        servers=(
            BUSY,
            ServerSettings(name="off", backend=CommandSettings(command="x"), disabled=True),
        )
    )
    assert max_calls_per_server(config) == MAX_CALLS_PER_CONNECTION
    settings = build_upstream_settings(BUSY, config)
    assert (settings.max_in_flight, settings.max_queue) == (MAX_CALLS_PER_CONNECTION, 0)


@pytest.mark.parametrize(
    ("http", "share"),
    [
        (HttpSettings(), MAX_CALLS_PER_CONNECTION // 2),
        (HttpSettings(max_in_flight=100), 50),
        (HttpSettings(max_in_flight_per_principal=31), 15),
        (HttpSettings(max_in_flight=1), 1),
    ],
)
def test_one_of_several_servers_may_use_at_most_half_of_the_calls(
    http: HttpSettings, share: int
) -> None:
    config = Config(http=http, servers=(BUSY, OTHER))
    for server in (BUSY, OTHER):
        settings = build_upstream_settings(server, config)
        assert settings.max_in_flight + settings.max_queue <= share
        assert settings.max_in_flight >= 1
        assert settings.max_queue >= 0
    busy = build_upstream_settings(BUSY, config)
    assert busy.max_in_flight + busy.max_queue == share


def test_with_auth_one_principal_gets_three_quarters_of_a_server() -> None:
    server = ServerSettings(name="s", backend=CommandSettings(command="x"))
    alone = build_upstream_settings(server, Config())
    assert alone.max_in_flight_per_principal is None
    assert alone.max_sessions_per_principal is None
    shared = Config(auth=auth_settings())
    settings = build_upstream_settings(server, shared)
    assert (settings.max_in_flight_per_principal, settings.max_sessions_per_principal) == (48, 12)
    server = replace(server, max_in_flight_per_principal=5)
    for config in (Config(), shared):
        assert build_upstream_settings(server, config).max_in_flight_per_principal == 5


def test_the_oauth_settings_reach_the_client_credentials() -> None:
    settings = OAuthSettings(
        token_url="https://id.example/token",
        client_id="gateway",
        client_secret="s3cr3t",
        auth="post",
        scope="a b",
        resource="https://x.example",
    )
    credentials = client_credentials(settings)
    assert (credentials.token_url, credentials.client_id) == (settings.token_url, "gateway")
    assert (credentials.client_secret, credentials.secret_in_form) == ("s3cr3t", True)
    assert credentials.token_params == {"scope": "a b", "resource": "https://x.example"}
    assert create_credentials(None) is None
    assert "s3cr3t" not in repr(create_credentials(settings)) + repr(credentials) + repr(settings)
