"""How the gateway gets tokens of its own, as a file says it."""

from pathlib import Path
from typing import Any

import pytest

from tests.config.test_settle import filled
from trunkline.config import Config, ConfigErrors, load

WEB = '[servers.web]\nurl = "https://a.example/mcp"\n'
OAUTH = '[servers.web.oauth]\ntoken_url = "https://id.example/token"\nclient_id = "gateway"\n'
GIVEN = WEB + OAUTH + 'client_secret_env = "SECRET"\n'


def read(folder: Path, text: str, **environ: str) -> Config:
    path = folder / "trunkline.toml"
    path.write_text(text)
    return load(path, environ)


def complaints(folder: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as wrong:
        read(folder, text, **environ)
    assert "s3cr3t" not in str(wrong.value)
    return str(wrong.value).splitlines()


def test_a_secret_comes_from_the_variable_that_is_named(tmp_path: Path) -> None:
    (web,) = read(tmp_path, GIVEN, SECRET="s3cr3t").servers
    assert web.oauth is not None
    assert web.oauth.client_secret == "s3cr3t"
    assert (web.oauth.token_url, web.oauth.client_id) == ("https://id.example/token", "gateway")
    assert (web.oauth.auth, web.oauth.scope) == ("basic", None)
    assert "s3cr3t" not in repr(web) + repr(web.oauth)


def test_or_by_a_reference_as_anywhere_else(tmp_path: Path) -> None:
    text = WEB + OAUTH + 'client_secret = "${SECRET}"\nscope = "${SCOPE}"\n'
    (web,) = read(tmp_path, text, SECRET="s3cr3t", SCOPE="a b").servers
    assert web.oauth is not None
    assert (web.oauth.client_secret, web.oauth.scope) == ("s3cr3t", "a b")


@pytest.mark.parametrize("environ", [{}, {"SECRET": ""}])
def test_a_variable_that_is_not_set_is_named(tmp_path: Path, environ: dict[str, str]) -> None:
    (line,) = complaints(tmp_path, GIVEN, **environ)
    assert "trunkline.toml:6: servers.web.oauth.client_secret_env: the variable SECRET" in line


def test_there_is_one_secret(tmp_path: Path) -> None:
    (line,) = complaints(tmp_path, WEB + OAUTH)
    assert "servers.web.oauth: no secret" in line
    (line,) = complaints(tmp_path, GIVEN + 'client_secret = "s3cr3t"\n', SECRET="s3cr3t")
    assert "client_secret is given as well" in line


def test_there_is_one_way_to_say_who_the_gateway_is(tmp_path: Path) -> None:
    text = GIVEN.replace("[servers.web.oauth]", 'headers.authorization = "x"\n[servers.web.oauth]')
    (line,) = complaints(tmp_path, text, SECRET="s3cr3t")
    assert "servers.web.headers.authorization: oauth is given as well" in line


def test_only_a_server_behind_a_url_has_tokens(tmp_path: Path) -> None:
    text = GIVEN.replace('url = "https://a.example/mcp"', 'command = "x"')
    (line,) = complaints(tmp_path, text, SECRET="s3cr3t")
    assert "servers.web.oauth: belongs to a server with a url" in line


@pytest.mark.parametrize("missing", ["token_url", "client_id"])
def test_what_is_needed_must_be_there(tmp_path: Path, missing: str) -> None:
    text = "\n".join(line for line in GIVEN.splitlines() if not line.startswith(missing))
    (line,) = complaints(tmp_path, text, SECRET="s3cr3t")
    assert missing in line


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/t", "http://localhost/t", "http://[::1]/t"])
def test_on_this_machine_a_secret_may_go_in_the_clear(tmp_path: Path, url: str) -> None:
    text = GIVEN.replace("https://id.example/token", url)
    assert read(tmp_path, text, SECRET="s3cr3t").servers[0].oauth is not None


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://id.example/t",
            "ftp://id.example",
            "https://",
            "/t",
            "https://a b/",
            "https://x:y",
        ),
        *("http://localhost.evil.example/t", "https://[x"),
    ],
)
def test_elsewhere_it_is_encrypted(tmp_path: Path, url: str) -> None:
    text = GIVEN.replace("https://id.example/token", url)
    (line,) = complaints(tmp_path, text, SECRET="s3cr3t")
    assert "servers.web.oauth.token_url: expected https://" in line


@pytest.mark.parametrize("url", ["https://user:s3cr3t@id.example/", "http://user@localhost/t"])
def test_no_password_is_in_the_address(tmp_path: Path, url: str) -> None:
    text = GIVEN.replace("https://id.example/token", url)
    (line,) = complaints(tmp_path, text, SECRET="s3cr3t")
    assert (
        "servers.web.oauth.token_url: a name or a password is in it, which is never sent;" in line
    )
    assert "s3cr3t" not in line


def test_a_disabled_server_needs_no_secret(tmp_path: Path) -> None:
    text = GIVEN.replace("[servers.web.oauth]", "disabled = true\n[servers.web.oauth]")
    assert read(tmp_path, text).servers[0].disabled


@pytest.mark.parametrize("oauth", [1, "x", [], {"client_secret_env": 1}, {"token_url": []}])
def test_what_is_no_table_is_left_to_those_who_complained_of_it(oauth: Any) -> None:
    assert filled({"url": "https://a.example", "oauth": oauth})[1] == []


def test_where_a_reference_is_broken_nothing_else_is_said() -> None:
    oauth = {"token_url": "${NOPE}", "client_secret_env": "NOPE"}
    (line,) = filled({"url": "https://a.example", "oauth": oauth})[1]
    assert "the variable NOPE is not set" in line
