"""Servers as their settings have them."""

import pytest

from trunkline.assembly.upstreams import credentials_of, grant_of, settings_of, share_of
from trunkline.config import Config, HttpSettings, ServerSettings
from trunkline.config.oauth_table import OAuthSettings
from trunkline.gateway.gateway import MAX_CALLS

BUSY = ServerSettings(name="busy", command="x", max_in_flight=65536, max_queue=65536)
OTHER = ServerSettings(name="other", url="https://x.example")


def test_one_that_has_the_gateway_to_itself_may_take_all_of_it() -> None:
    config = Config(servers=(BUSY, ServerSettings(name="off", command="x", disabled=True)))
    assert share_of(config) == MAX_CALLS
    settings = settings_of(BUSY, config)
    assert (settings.max_in_flight, settings.max_queue) == (MAX_CALLS, 0)


@pytest.mark.parametrize(
    ("http", "share"),
    [
        (HttpSettings(), MAX_CALLS // 2),
        (HttpSettings(max_in_flight=100), 50),
        (HttpSettings(max_in_flight_per_principal=31), 15),
        (HttpSettings(max_in_flight=1), 1),
    ],
)
def test_with_others_it_leaves_them_at_least_half(http: HttpSettings, share: int) -> None:
    config = Config(http=http, servers=(BUSY, OTHER))
    for server in (BUSY, OTHER):
        settings = settings_of(server, config)
        assert settings.max_in_flight + settings.max_queue <= share
        assert settings.max_in_flight >= 1
        assert settings.max_queue >= 0
    busy = settings_of(BUSY, config)
    assert busy.max_in_flight + busy.max_queue == share


def test_what_is_part_of_us_needs_no_pings() -> None:
    builtin = ServerSettings(name="sources", builtin="sources")
    assert settings_of(builtin, Config(servers=(builtin,))).ping_interval == 0
    assert settings_of(OTHER, Config(servers=(OTHER,))).ping_interval == 30.0


def test_who_gives_out_tokens_is_told_all_that_the_settings_say() -> None:
    settings = OAuthSettings(
        token_url="https://id.example/token",
        client_id="gateway",
        client_secret="s3cr3t",
        auth="post",
        scope="a b",
        resource="https://x.example",
    )
    grant = grant_of(settings)
    assert (grant.token_url, grant.client_id) == (settings.token_url, "gateway")
    assert (grant.client_secret, grant.in_form) == ("s3cr3t", True)
    assert grant.wishes == {"scope": "a b", "resource": "https://x.example"}
    assert credentials_of(None) is None
    assert "s3cr3t" not in repr(credentials_of(settings)) + repr(grant) + repr(settings)
