"""Detecting a server URL that is the address of the gateway itself."""

from pathlib import Path

import pytest

from trunkline.backends.command import CommandSettings
from trunkline.backends.url import UrlSettings
from trunkline.config.load import is_own_address, load_config, require_no_self_reference
from trunkline.config.model import Config
from trunkline.config.server_table import ServerSettings
from trunkline.documents.errors import ConfigErrors

LOOP = """\
[http]
listen = "127.0.0.1:8080"

[servers.fs]
command = "fs"

[servers.me]
url = "http://localhost:8080/mcp"
"""


@pytest.mark.parametrize(
    ("url", "listen"),
    [
        ("http://127.0.0.1:8080/mcp", "127.0.0.1:8080"),
        ("https://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://LocalHost.:8080/other", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "localhost:8080"),
        ("http://[::1]:8080", "localhost:8080"),
        ("http://[0:0:0:0:0:0:0:1]:8080", "[::1]:8080"),
        ("http://127.0.0.1", "127.0.0.1:80"),
        ("https://gateway.example/mcp", "Gateway.example:443"),
        ("http://127.0.0.1:8080", "0.0.0.0:8080"),
        ("http://[::1]:8080", "[::]:8080"),
        ("http://0.0.0.0:8080", "127.0.0.1:8080"),
    ],
)
def test_a_url_at_the_listen_address_is_the_gateway_itself(url: str, listen: str) -> None:
    assert is_own_address(url, listen)


@pytest.mark.parametrize(
    ("url", "listen"),
    [
        ("http://127.0.0.1:8081/mcp", "127.0.0.1:8080"),
        ("http://127.0.0.2:8080/mcp", "127.0.0.1:8080"),
        ("http://127.0.0.2:8080/mcp", "localhost:8080"),
        ("http://[::1]:8080/mcp", "127.0.0.1:8080"),
        ("http://tracker.example:8080/mcp", "0.0.0.0:8080"),
        ("http://127.0.0.1:0/mcp", "127.0.0.1:0"),  # 0 means any free port
        ("ws://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://127.0.0.1:x", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "nonsense"),
        ("http://127.0.0.1:8080", "127.0.0.1:99999"),
        ("http://127.0.0.1:8080", None),
        (3, "127.0.0.1:8080"),
    ],
)
def test_any_other_url_is_not_the_gateway_itself(url: object, listen: object) -> None:
    assert not is_own_address(url, listen)


def test_a_server_url_at_the_listen_address_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(LOOP)
    with pytest.raises(ConfigErrors) as raised:
        load_config(file, {})
    (error,) = raised.value.errors
    assert str(error) == (
        f"{file}:8: servers.me.url: it is the address of this gateway; "
        "remove the server, or listen elsewhere"
    )
    file.write_text(LOOP + "disabled = true\n")
    assert len(load_config(file, {}).servers) == 2


def test_a_listen_address_from_an_option_is_checked_too() -> None:
    servers = [
        ServerSettings(name="a", backend=UrlSettings(url="http://127.0.0.1:1/")),
        ServerSettings(name="b", backend=UrlSettings(url="http://127.0.0.1:1/"), disabled=True),
        ServerSettings(name="c", backend=CommandSettings(command="c")),
    ]
    config = Config(servers=tuple(servers), source=Path("t.toml"))
    require_no_self_reference(config, None)
    require_no_self_reference(config, "127.0.0.1:2")
    with pytest.raises(
        ConfigErrors, match=r"^t\.toml: servers\.a\.url: .* this gateway, 127\S+; remove"
    ):
        require_no_self_reference(config, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("https://gw.example/tools/mcp", True),
        ("https://gw.example/tools/sse", True),
        ("https://gw.example/tools/w", True),
        ("https://gw.example/mcp", False),
        ("https://gw.example/tools/other", False),
    ],
)
def test_a_server_url_at_the_public_url_is_refused(url: str, is_own: bool, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    http = '[http]\npublic_url = "https://gw.example/tools/"\nws_path = "/w"\n'
    file.write_text(f'{http}[servers.me]\nurl = "{url}"\n')
    if not is_own:
        assert len(load_config(file, {}).servers) == 1
        return
    with pytest.raises(ConfigErrors, match=r"servers\.me\.url: it is the address of this gateway"):
        load_config(file, {})
