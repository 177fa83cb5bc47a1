"""What a configuration says when nobody says anything, and what it never shows."""

from trunkline.config.gateway_table import GatewaySettings
from trunkline.config.model import Config
from trunkline.config.server_table import ServerSettings


def test_no_file_at_all_is_a_valid_configuration() -> None:
    config = Config()
    assert config.gateway == GatewaySettings(name="trunkline")
    assert config.gateway.instructions is None
    assert config.gateway.strict_lifecycle
    assert (config.servers, config.source, config.notes) == ((), None, ())


def test_printing_a_configuration_shows_no_secret() -> None:
    secret = "s3cr3t"
    server = ServerSettings(
        name="fs", command=secret, args=(secret,), env={"T": secret}, cwd=f"/{secret}"
    )
    config = Config(servers=(server,))
    assert secret not in f"{config} {config!r} {server}"
    assert "'fs', child" in repr(server)
