"""What a configuration says when nobody says anything, and what it never shows."""

import pytest

from trunkline.config.model import Config, GatewaySettings, ServerSettings


def test_no_file_at_all_is_a_valid_configuration() -> None:
    config = Config()
    assert config.gateway == GatewaySettings(name="trunkline")
    assert config.gateway.instructions is None
    assert config.gateway.strict_lifecycle
    assert (config.servers, config.source, config.notes) == ((), None, ())


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


def test_printing_a_configuration_shows_no_secret() -> None:
    secret = "s3cr3t"
    server = ServerSettings(
        name="fs", command=secret, args=(secret,), env={"T": secret}, cwd=f"/{secret}"
    )
    config = Config(servers=(server,))
    assert secret not in f"{config} {config!r} {server}"
    assert "'fs', child" in repr(server)


def test_two_servers_share_no_dictionary() -> None:
    one, other = ServerSettings(name="a", command="x"), ServerSettings(name="b", command="x")
    one.env["A"] = "1"
    assert other.env == {}
