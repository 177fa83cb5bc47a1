"""Building the HTTP endpoint from the settings."""

import pytest

from trunkline.app.build import build_http_limits, build_http_rules
from trunkline.config import HttpSettings
from trunkline.endpoints.auth import EndpointSettings
from trunkline.http.message import HttpLimits


def test_every_http_setting_reaches_the_rules_or_the_limits() -> None:
    settings = HttpSettings(
        path="/a",
        sse_path="/b",
        ws_path="/c",
        public_url="https://Public.Example:8443/tools/",
        allowed_hosts=("Gateway.Example",),
        allowed_origins=("https://App.Example",),
        head_timeout=1.0,
        body_timeout=2.0,
        write_timeout=3.0,
        max_body=4,
        max_connections=5,
        max_connections_per_address=6,
        max_in_flight=7,
        max_in_flight_per_principal=8,
        max_sessions=9,
        max_sessions_per_principal=13,
        max_streams=14,
        max_streams_per_principal=15,
        max_buffered_bytes=16,
        max_buffered_bytes_per_principal=17,
        session_idle=10.0,
        session_max_age=11.0,
        sse_ping_interval=12.0,
    )
    rules, limits = build_http_rules(settings), build_http_limits(settings)
    assert not rules.is_wrong_host(b"gateway.example:443")
    assert not rules.is_forbidden_origin(b"https://app.example")
    values = {key: getattr(part, key) for part in (rules, limits) for key in part.__struct_fields__}
    other_keys = {
        *("listen", "public_url", "tls_cert", "tls_key", "allowed_hosts", "allowed_origins"),
        *("allow_remote_without_auth", "trusted_proxies"),
    }
    for key in set(HttpSettings.__struct_fields__) - other_keys:
        assert values[key] == getattr(settings, key), key


def test_with_several_principals_one_gets_a_quarter_of_each_limit() -> None:
    rules = build_http_rules(HttpSettings(max_sessions=10, max_streams=2), is_shared=True)
    assert rules.max_sessions_per_principal == 2
    assert rules.max_streams_per_principal == 1
    assert rules.max_buffered_bytes_per_principal == 128 * 1024 * 1024
    set_limits = HttpSettings(max_sessions_per_principal=7, max_streams_per_principal=8)
    rules = build_http_rules(set_limits, is_shared=True)
    assert (rules.max_sessions_per_principal, rules.max_streams_per_principal) == (7, 8)


def test_the_defaults_of_the_configuration_equal_those_of_the_components() -> None:
    assert build_http_rules(HttpSettings()) == EndpointSettings()
    assert build_http_limits(HttpSettings()) == HttpLimits()


@pytest.mark.parametrize(
    ("url", "host", "origin"),
    [
        ("https://Gateway.Example", "gateway.example", "https://gateway.example"),
        ("HTTPS://gw.example:443/tools/", "gw.example:8080", "https://gw.example"),
        ("http://gw.example:8080/a/b", "gw.example", "http://gw.example:8080"),
        ("https://[2001:db8::1]:8443", "[2001:db8::1]:8443", "https://[2001:db8::1]:8443"),
    ],
)
def test_the_public_url_is_an_allowed_host_and_origin(url: str, host: str, origin: str) -> None:
    rules = build_http_rules(HttpSettings(public_url=url))
    assert rules.check_access(host.encode(), origin.encode()) is None
    assert rules.is_wrong_host(b"other.example")
    assert rules.is_forbidden_origin(origin.replace("https", "http").encode()) == (
        origin.startswith("https")
    )
    assert rules.is_forbidden_origin(b"https://other.example")


def test_a_path_of_the_public_url_comes_before_that_for_posts() -> None:
    rules = build_http_rules(HttpSettings(public_url="https://gw.example/tools/"))
    assert rules.public_messages_path == "/tools/messages"
    assert rules.messages_paths == ("/messages", "/tools/messages")
    assert (
        build_http_rules(HttpSettings(public_url="https://a")).public_messages_path == "/messages"
    )
