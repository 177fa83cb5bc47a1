"""The contestants, and how they are started."""

import tomllib
from pathlib import Path

import pytest

from bench.gateway.contestants import (
    DIRECT,
    TRUNKLINE,
    ContestantSite,
    ServerTransport,
    distribution,
    fastmcp,
    nginx,
)
from trunkline.mcp.versions import Era

URL = "http://127.0.0.1:9/mcp"
COMMAND = ["python", "-m", "server", "--stdio"]


def place(folder: Path, behind: ServerTransport) -> ContestantSite:
    return ContestantSite(folder, 8080, behind, URL, COMMAND, Era.SESSION)


def test_the_direct_contestant_is_the_server_itself(tmp_path: Path) -> None:
    way = DIRECT.start(place(tmp_path, ServerTransport.HTTP))
    assert [*way.command][-3:] == ["127.0.0.1:8080", "--era", "session"]
    assert way.address.port == 8080


@pytest.mark.parametrize("behind", ServerTransport)
def test_trunkline_is_configured_with_the_server(behind: ServerTransport, tmp_path: Path) -> None:
    way = TRUNKLINE.start(place(tmp_path, behind))
    text = (tmp_path / "trunkline.toml").read_text(encoding="utf-8")
    server = tomllib.loads(text)["servers"]["fast"]
    assert server["prefix"] == ""
    if behind is ServerTransport.HTTP:
        assert server["url"] == URL
    else:
        assert [server["command"], *server["args"]] == COMMAND
    assert "127.0.0.1:8080" in way.command


def test_nginx_is_configured_with_the_address_of_the_server(tmp_path: Path) -> None:
    way = nginx("/opt/nginx").start(place(tmp_path, ServerTransport.HTTP))
    text = (tmp_path / "nginx.conf").read_text(encoding="utf-8")
    assert "server 127.0.0.1:9;" in text
    assert "listen 127.0.0.1:8080;" in text
    assert way.command[0] == "/opt/nginx"


@pytest.mark.parametrize("behind", ServerTransport)
@pytest.mark.parametrize("shared", [True, False])
def test_the_fastmcp_proxy_is_a_script_that_compiles(
    shared: bool, behind: ServerTransport, tmp_path: Path
) -> None:
    way = fastmcp(shared).start(place(tmp_path, behind))
    text = Path(way.command[-1]).read_text(encoding="utf-8")
    compile(text, "proxy.py", "exec")
    assert (URL if behind is ServerTransport.HTTP else "'--stdio'") in text


def test_a_missing_contestant_says_what_is_missing() -> None:
    with pytest.raises(LookupError, match="there is no nginx"):
        nginx("/no/such/nginx").version()
    with pytest.raises(LookupError, match="no-such-thing is not installed"):
        distribution("no-such-thing")
    assert distribution("msgspec")


def test_the_version_of_nginx_is_found(tmp_path: Path) -> None:
    stand_in = tmp_path / "nginx"
    stand_in.write_text("#!/bin/sh\necho 'nginx version: nginx/1.22.1' >&2\n", encoding="utf-8")
    stand_in.chmod(0o755)
    assert nginx(str(stand_in)).version() == "1.22.1"
