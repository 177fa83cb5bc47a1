"""The defaults of a configuration, and its representation without secrets."""

from trunkline.backends.command import CommandSettings
from trunkline.config.gateway_tables import GatewaySettings
from trunkline.config.model import Config
from trunkline.config.server_table import ServerSettings


def test_a_configuration_without_a_file_is_valid() -> None:
    config = Config()
    assert config.gateway == GatewaySettings(name="trunkline")
    assert config.gateway.instructions is None
    assert config.gateway.strict_lifecycle
    assert (config.servers, config.source, config.notes) == ((), None, ())


def test_printing_a_configuration_shows_no_secret() -> None:
    secret = "s3cr3t"
    server = ServerSettings(
        name="fs",
        backend=CommandSettings(
            command=secret, args=(secret,), env={"T": secret}, cwd=f"/{secret}"
        ),
    )
    config = Config(servers=(server,))
    assert secret not in f"{config} {config!r} {server}"
    assert repr(server) == "ServerSettings('fs', CommandSettings(…))"
