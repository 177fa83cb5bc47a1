"""The defaults of a server."""

import pytest

from trunkline.config.server_table import ServerSettings


def test_a_server_has_defaults_for_all_optional_keys() -> None:
    server = ServerSettings(name="fs", command="npx")
    assert (server.args, server.env, server.headers, server.cwd) == ((), {}, {}, None)
    assert (server.prefix, server.protocol, server.disabled) == (None, "auto", False)
    assert (server.timeout, server.start_timeout) == (60.0, 60.0)
    assert (server.max_in_flight, server.max_restarts) == (64, None)


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (ServerSettings(name="a", command="npx"), "child"),
        (ServerSettings(name="a", url="https://a.example"), "http"),
        (ServerSettings(name="a", builtin="sources"), "builtin"),
    ],
)
def test_the_kind_of_a_server_follows_from_its_keys(server: ServerSettings, kind: str) -> None:
    assert server.kind == kind


def test_the_prefix_of_a_server_defaults_to_its_name() -> None:
    assert ServerSettings(name="a", command="x").effective_prefix == "a"
    assert ServerSettings(name="a", command="x", prefix="b").effective_prefix == "b"
    assert ServerSettings(name="a", command="x", prefix="").effective_prefix == ""


def test_servers_do_not_share_dictionaries() -> None:
    one, other = ServerSettings(name="a", command="x"), ServerSettings(name="b", command="x")
    one.env["A"] = "1"
    assert other.env == {}
