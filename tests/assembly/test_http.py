"""The door as the settings have it: every key reaches the part that it is about."""

from trunkline.assembly.http import limits_of, rules_of
from trunkline.config import HttpSettings
from trunkline.transports.http_message import HttpLimits
from trunkline.transports.http_rules import HttpRules


def test_the_settings_of_http_reach_its_parts() -> None:
    given = HttpSettings(
        path="/a",
        sse_path="/b",
        ws_path="/c",
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
        session_idle=10.0,
        session_life=11.0,
        keep_alive=12.0,
    )
    rules, limits = rules_of(given), limits_of(given)
    assert not rules.refuses_host(b"gateway.example:443")
    assert not rules.refuses_origin(b"https://app.example")
    reached = {
        key: getattr(part, key) for part in (rules, limits) for key in part.__struct_fields__
    }
    elsewhere = {"listen", "certificate", "key", "allowed_hosts", "allowed_origins"}
    for key in set(HttpSettings.__struct_fields__) - elsewhere:
        assert reached[key] == getattr(given, key), key


def test_what_the_configuration_defaults_to_is_what_the_parts_default_to() -> None:
    assert rules_of(HttpSettings()) == HttpRules()
    assert limits_of(HttpSettings()) == HttpLimits()
