"""Building the settings of an upstream from the settings of its server."""

import pytest

from trunkline.app.build import (
    build_client_credentials,
    build_credentials,
    build_upstream_settings,
    max_calls_per_server,
)
from trunkline.config import Config, HttpSettings, ServerSettings
from trunkline.config.server_table import OAuthSettings
from trunkline.gateway.gateway import MAX_CALLS_PER_CONNECTION

BUSY = ServerSettings(name="busy", command="x", max_in_flight=65536, max_queue=65536)
OTHER = ServerSettings(name="other", url="https://x.example")


def test_the_only_server_may_use_all_calls_of_a_connection() -> None:
    config = Config(servers=(BUSY, ServerSettings(name="off", command="x", disabled=True)))
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


def test_built_in_servers_are_not_pinged() -> None:
    builtin = ServerSettings(name="sources", builtin="sources")
    assert build_upstream_settings(builtin, Config(servers=(builtin,))).ping_interval == 0
    assert build_upstream_settings(OTHER, Config(servers=(OTHER,))).ping_interval == 30.0


def test_the_oauth_settings_reach_the_client_credentials() -> None:
    settings = OAuthSettings(
        token_url="https://id.example/token",
        client_id="gateway",
        client_secret="s3cr3t",
        auth="post",
        scope="a b",
        resource="https://x.example",
    )
    credentials = build_client_credentials(settings)
    assert (credentials.token_url, credentials.client_id) == (settings.token_url, "gateway")
    assert (credentials.client_secret, credentials.secret_in_form) == ("s3cr3t", True)
    assert credentials.token_params == {"scope": "a b", "resource": "https://x.example"}
    assert build_credentials(None) is None
    assert "s3cr3t" not in repr(build_credentials(settings)) + repr(credentials) + repr(settings)
