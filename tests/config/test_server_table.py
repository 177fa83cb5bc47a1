"""What a server is when nobody says more."""

import pytest

from trunkline.config.server_table import ServerSettings


def test_a_server_has_a_default_for_everything_but_what_it_is() -> None:
    server = ServerSettings(name="fs", command="npx")
    assert (server.args, server.env, server.headers, server.cwd) == ((), {}, {}, None)
    assert (server.prefix, server.era, server.disabled) == (None, "auto", False)
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
def test_a_server_is_of_the_kind_that_it_is_given(server: ServerSettings, kind: str) -> None:
    assert server.kind == kind


def test_a_server_shows_its_name_before_its_tools_unless_it_has_another_prefix() -> None:
    assert ServerSettings(name="a", command="x").shown_prefix == "a"
    assert ServerSettings(name="a", command="x", prefix="b").shown_prefix == "b"
    assert ServerSettings(name="a", command="x", prefix="").shown_prefix == ""


def test_two_servers_share_no_dictionary() -> None:
    one, other = ServerSettings(name="a", command="x"), ServerSettings(name="b", command="x")
    one.env["A"] = "1"
    assert other.env == {}
