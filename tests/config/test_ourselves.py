"""A gateway knows where it listens itself, however that is spelt, and takes no other for it."""

from pathlib import Path

import pytest

from trunkline.config.load import load
from trunkline.config.model import Config
from trunkline.config.ourselves import expect_others, is_ourselves
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
def test_a_url_is_ours_if_we_listen_there(url: str, listen: str) -> None:
    assert is_ourselves(url, listen)


@pytest.mark.parametrize(
    ("url", "listen"),
    [
        ("http://127.0.0.1:8081/mcp", "127.0.0.1:8080"),
        ("http://127.0.0.2:8080/mcp", "127.0.0.1:8080"),
        ("http://127.0.0.2:8080/mcp", "localhost:8080"),
        ("http://[::1]:8080/mcp", "127.0.0.1:8080"),
        ("http://tracker.example:8080/mcp", "0.0.0.0:8080"),
        ("http://127.0.0.1:0/mcp", "127.0.0.1:0"),  # 0 is any that is free
        ("ws://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://127.0.0.1:x", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "nonsense"),
        ("http://127.0.0.1:8080", "127.0.0.1:99999"),
        ("http://127.0.0.1:8080", None),
        (3, "127.0.0.1:8080"),
    ],
)
def test_it_is_another_s_everywhere_else(url: object, listen: object) -> None:
    assert not is_ourselves(url, listen)


def test_a_file_that_puts_the_gateway_behind_itself_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(LOOP)
    with pytest.raises(ConfigErrors) as caught:
        load(file, {})
    (error,) = caught.value.errors
    assert str(error) == (
        f"{file}:8: servers.me.url: it is where this gateway itself listens; "
        "leave the server out, or listen elsewhere"
    )
    file.write_text(LOOP + "disabled = true\n")
    assert len(load(file, {}).servers) == 2


def test_an_address_that_the_file_does_not_know_is_looked_at_too() -> None:
    servers = [
        ServerSettings(name="a", url="http://127.0.0.1:1/"),
        ServerSettings(name="b", url="http://127.0.0.1:1/", disabled=True),
        ServerSettings(name="c", command="c"),
    ]
    config = Config(servers=tuple(servers), source=Path("t.toml"))
    expect_others(config, None)
    expect_others(config, "127.0.0.1:2")
    with pytest.raises(ConfigErrors, match=r"^t\.toml: servers\.a\.url: .* listens, 127\S+; leave"):
        expect_others(config, "127.0.0.1:1")
