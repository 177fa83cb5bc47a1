"""Loading and validating `[servers.NAME.oauth]`."""

from pathlib import Path
from typing import Any

import pytest

from tests.config.backend_settings import url_of
from tests.config.test_resolve_server import resolve
from trunkline.config import Config, ConfigErrors, load_config

WEB = '[servers.web]\nurl = "https://a.example/mcp"\n'
OAUTH = '[servers.web.oauth]\ntoken_url = "https://id.example/token"\nclient_id = "gateway"\n'
COMPLETE = WEB + OAUTH + 'client_secret_env = "SECRET"\n'


def read(folder: Path, text: str, **environ: str) -> Config:
    path = folder / "trunkline.toml"
    path.write_text(text)
    return load_config(path, environ)


def errors_of(folder: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        read(folder, text, **environ)
    assert "s3cr3t" not in str(raised.value)
    return str(raised.value).splitlines()


def test_the_secret_comes_from_the_named_variable(tmp_path: Path) -> None:
    (web,) = read(tmp_path, COMPLETE, SECRET="s3cr3t").servers
    oauth = url_of(web).oauth
    assert oauth is not None
    assert oauth.client_secret == "s3cr3t"
    assert (oauth.token_url, oauth.client_id) == ("https://id.example/token", "gateway")
    assert (oauth.auth, oauth.scope) == ("basic", None)
    assert "s3cr3t" not in repr(web) + repr(url_of(web)) + repr(oauth)


def test_the_secret_may_be_a_reference(tmp_path: Path) -> None:
    text = WEB + OAUTH + 'client_secret = "${SECRET}"\nscope = "${SCOPE}"\n'
    (web,) = read(tmp_path, text, SECRET="s3cr3t", SCOPE="a b").servers
    oauth = url_of(web).oauth
    assert oauth is not None
    assert (oauth.client_secret, oauth.scope) == ("s3cr3t", "a b")


@pytest.mark.parametrize("environ", [{}, {"SECRET": ""}])
def test_an_unset_variable_is_reported_by_name(tmp_path: Path, environ: dict[str, str]) -> None:
    (server,) = read(tmp_path, COMPLETE, **environ).servers
    expected = "trunkline.toml:6: servers.web.oauth.client_secret_env: the variable SECRET"
    assert expected in (server.unresolved or "")


def test_a_token_url_from_the_environment_concerns_its_server_only(tmp_path: Path) -> None:
    text = COMPLETE.replace("https://id.example/token", "${URL}")
    (server,) = read(tmp_path, text, SECRET="s3cr3t", URL="http://id.example").servers
    assert "servers.web.oauth.token_url: expected https://" in (server.unresolved or "")


def test_exactly_one_secret_is_required(tmp_path: Path) -> None:
    (line,) = errors_of(tmp_path, WEB + OAUTH)
    assert "servers.web.oauth: no secret" in line
    (line,) = errors_of(tmp_path, COMPLETE + 'client_secret = "s3cr3t"\n', SECRET="s3cr3t")
    assert "client_secret is given as well" in line


def test_oauth_excludes_an_authorization_header(tmp_path: Path) -> None:
    text = COMPLETE.replace(
        "[servers.web.oauth]", 'headers.authorization = "x"\n[servers.web.oauth]'
    )
    (line,) = errors_of(tmp_path, text, SECRET="s3cr3t")
    assert "servers.web.headers.authorization: oauth is given as well" in line


def test_oauth_requires_a_server_with_a_url(tmp_path: Path) -> None:
    text = COMPLETE.replace('url = "https://a.example/mcp"', 'command = "x"')
    (line,) = errors_of(tmp_path, text, SECRET="s3cr3t")
    assert "servers.web.oauth: belongs to a server with a url" in line


@pytest.mark.parametrize("missing", ["token_url", "client_id"])
def test_a_missing_required_key_is_reported(tmp_path: Path, missing: str) -> None:
    text = "\n".join(line for line in COMPLETE.splitlines() if not line.startswith(missing))
    (line,) = errors_of(tmp_path, text, SECRET="s3cr3t")
    assert missing in line


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/t", "http://localhost/t", "http://[::1]/t"])
def test_a_token_url_on_loopback_may_be_unencrypted(tmp_path: Path, url: str) -> None:
    text = COMPLETE.replace("https://id.example/token", url)
    assert url_of(read(tmp_path, text, SECRET="s3cr3t").servers[0]).oauth is not None


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
def test_any_other_token_url_must_be_https(tmp_path: Path, url: str) -> None:
    text = COMPLETE.replace("https://id.example/token", url)
    (line,) = errors_of(tmp_path, text, SECRET="s3cr3t")
    assert "servers.web.oauth.token_url: expected https://" in line


@pytest.mark.parametrize("url", ["https://user:s3cr3t@id.example/", "http://user@localhost/t"])
def test_a_token_url_with_a_password_is_refused(tmp_path: Path, url: str) -> None:
    text = COMPLETE.replace("https://id.example/token", url)
    (line,) = errors_of(tmp_path, text, SECRET="s3cr3t")
    assert (
        "servers.web.oauth.token_url: it contains a user name or password, which is never sent;"
        in line
    )
    assert "s3cr3t" not in line


def test_a_disabled_server_needs_no_secret(tmp_path: Path) -> None:
    text = COMPLETE.replace("[servers.web.oauth]", "disabled = true\n[servers.web.oauth]")
    assert read(tmp_path, text).servers[0].disabled


@pytest.mark.parametrize("oauth", [1, "x", [], {"client_secret_env": 1}, {"token_url": []}])
def test_resolving_ignores_an_oauth_value_of_the_wrong_type(oauth: Any) -> None:
    assert resolve({"url": "https://a.example", "oauth": oauth})[1] == []


def test_a_broken_reference_is_the_only_error() -> None:
    oauth = {"token_url": "${NOPE}", "client_secret_env": "NOPE"}
    (line,) = resolve({"url": "https://a.example", "oauth": oauth})[1]
    assert "the variable NOPE is not set" in line
