"""Loading and validating `[auth]`."""

from pathlib import Path

import pytest

from trunkline.config import (
    AuthSettings,
    Config,
    ConfigErrors,
    load_config,
    read_raw_config,
    to_toml,
)
from trunkline.config.auth_table import MIN_SECRET_BYTES, JwtSettings, auth_modes

SECRET = "s" * MIN_SECRET_BYTES
ENVIRON = {"SECRET": SECRET, "SHORT": "s" * (MIN_SECRET_BYTES - 1), "HOME": "/nowhere"}
JWKS = 'jwks_url = "https://id.example/jwks"\nissuer = "https://id.example"\naudience = "a"'


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(text, encoding="utf-8")
    return file


def load(folder: Path, text: str) -> Config:
    return load_config(write(folder, text), ENVIRON)


def load_auth(folder: Path, text: str) -> AuthSettings:
    auth = load(folder, text).auth
    assert auth is not None
    return auth


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as raised:
        load_config(file, ENVIRON)
    return [str(error).removeprefix(f"{file}:") for error in raised.value.errors]


@pytest.mark.holds("C30")
def test_without_the_table_there_is_no_authentication() -> None:
    assert Config().auth is None


@pytest.mark.holds("O0.8")
def test_a_secret_is_enough_to_accept_own_tokens(tmp_path: Path) -> None:
    found = load_auth(tmp_path, '[auth.jwt]\nsecret_env = "SECRET"\n')
    assert found.is_required
    assert found.api_keys is None
    assert found.jwt == JwtSettings(
        issuer="trunkline", audiences=("trunkline",), secret=SECRET.encode()
    )
    assert SECRET not in repr(found)


def test_every_key_of_the_table_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text("{}")
    found = load_auth(
        tmp_path,
        '[auth]\nmode = ["jwt", "api_key"]\nresource = "https://gw.example/mcp"\n'
        'required_scopes = ["a", "mcp:tools"]\nmax_failures = 5\n'
        '[auth.jwt]\nissuer = "https://id.example"\njwks_file = "jwks.json"\n'
        'role_claim = "a.b"\nclock_skew = 300\njwks_refresh = 10\n'
        'authorization_servers = ["https://as.example"]\n[auth.api_keys]\nfile = "/etc/k.json"\n',
    )
    assert found == AuthSettings(
        jwt=JwtSettings(
            issuer="https://id.example",
            audiences=("https://gw.example/mcp",),
            jwks_file=tmp_path / "jwks.json",
            jwks_refresh=10.0,
            role_claim="a.b",
            clock_skew=300.0,
            authorization_servers=("https://as.example",),
        ),
        api_keys=Path("/etc/k.json"),
        resource="https://gw.example/mcp",
        required_scopes=("a", "mcp:tools"),
        max_failures=5,
    )


def test_several_audiences_are_allowed_and_an_issuer_url_is_the_authorization_server(
    tmp_path: Path,
) -> None:
    text = f'[auth.jwt]\n{JWKS.replace("audience = ", "audience = [")}, "b"]\n'
    found = load_auth(tmp_path, text).jwt
    assert found is not None
    assert found.audiences == ("a", "b")
    assert found.authorization_servers == ("https://id.example",)


def test_the_key_file_is_next_to_the_configuration_by_default(tmp_path: Path) -> None:
    for text in ('[auth]\nmode = ["api_key"]\n', "[auth.api_keys]\n"):
        found = load_auth(tmp_path, text)
        assert (found.api_keys, found.jwt) == (tmp_path / "keys.json", None)


def test_a_table_that_mode_leaves_out_is_not_validated(tmp_path: Path) -> None:
    found = load_auth(tmp_path, '[auth]\nmode = ["api_key"]\n[auth.jwt]\nsecret_env = "UNSET"\n')
    assert found.jwt is None


@pytest.mark.holds("M10", "C30")
def test_mode_none_disables_authentication_with_a_note_and_only_on_loopback(tmp_path: Path) -> None:
    config = load(tmp_path, '[auth]\nmode = "none"\n[http]\nlisten = "127.0.0.1:80"\n')
    assert config.auth is not None
    assert not config.auth.is_required
    (note,) = config.notes
    assert "auth.mode: any local user can connect" in note
    refused = '[auth]\nmode = "none"\n[http]\nlisten = "0.0.0.0:80"\n'
    (error,) = errors_of(tmp_path, refused)
    assert error.startswith("4: http.listen: expected a loopback address")


@pytest.mark.holds("C30")
def test_a_network_address_requires_authentication(tmp_path: Path) -> None:
    protected = '[auth]\nmode = ["api_key"]\n[http]\nlisten = "0.0.0.0:80"\n'
    config = load(tmp_path, protected)
    assert config.http.listen == "0.0.0.0:80"
    assert ["unencrypted" in note or "get 421" in note for note in config.notes] == [True] * 2
    (tmp_path / "c.pem").write_text("")
    tls_table = 'tls_cert = "c.pem"\ntls_key = "c.pem"\nallowed_hosts = ["gw.example"]\n'
    assert load(tmp_path, protected + tls_table).notes == ()
    for unprotected in (
        '[http]\nlisten = "0.0.0.0:80"\n',
        '[auth]\n[http]\nlisten = "0.0.0.0:80"\n',
    ):
        assert any(
            "expected a loopback address" in error for error in errors_of(tmp_path, unprotected)
        )


WRONG: list[tuple[str, str]] = [
    ("[auth]", '1: auth: no credentials are configured; set mode to "api_key", "jwt" or "none"'),
    ("[auth]\nmode = []", "1: auth: no credentials are configured;"),
    (
        '[auth]\nmode = "jwtt"',
        '2: auth.mode: expected "api_key", "jwt" or "none"; did you mean "jwt"?',
    ),
    ("[auth]\nmode = {}", '2: auth.mode: expected "api_key", "jwt" or "none"; choose one'),
    ('[auth]\nmode = ["none"]', '2: auth.mode[0]: expected "api_key" or "jwt"; choose one'),
    ('[auth]\nmode = ["jwt"]', "2: auth.mode: there is no table for jwt; add [auth.jwt]"),
    ("[auth.jwt]", "1: auth.jwt: expected one of secret_env, jwks_url and jwks_file, got 0;"),
    ('[auth.jwt]\nsecret_env = "UNSET"', "2: auth.jwt.secret_env: the variable UNSET is not set;"),
    (
        '[auth.jwt]\nsecret_env = "SHORT"',
        "2: auth.jwt.secret_env: expected a secret of at least 32 bytes in SHORT, got 31;",
    ),
    (
        f'[auth.jwt]\n{JWKS}\nsecret_env = "SECRET"',
        "1: auth.jwt: expected one of secret_env, jwks_url and jwks_file, got 2;",
    ),
    ('[auth.jwt]\njwks_url = "https://a"\naudience = "x"', '1: auth.jwt: "issuer" is missing'),
    ('[auth.jwt]\njwks_url = "https://a"\nissuer = "x"', '1: auth.jwt: "audience" is missing'),
    (f"[auth.jwt]\n{JWKS}\naudience = []".replace('\naudience = "a"', ""), "4: auth.jwt.audience"),
    (
        f"[auth.jwt]\n{JWKS}".replace("https://id.example/jwks", "http://id.example/jwks"),
        "2: auth.jwt.jwks_url: the keys could be changed in transit; write https://",
    ),
    (
        f"[auth.jwt]\n{JWKS}".replace("https://id.example/jwks", "https://a:x/"),
        "2: auth.jwt.jwks_url: the keys could be changed in transit",
    ),
    (
        f"[auth.jwt]\n{JWKS}".replace("https://id.example", "https://me:x@id.example"),
        "2: auth.jwt.jwks_url: it contains a user name or password, which is never sent; remove it",
    ),
    (
        f"[auth.jwt]\n{JWKS}".replace("https://id.example/jwks", "file:///etc/passwd"),
        '2: auth.jwt.jwks_url: expected a url, such as "https://id.example"; choose another',
    ),
    (
        '[auth.jwt]\njwks_file = "no.json"\nissuer = "a"\naudience = "b"',
        "2: auth.jwt.jwks_file: cannot be read: no such file or directory;",
    ),
    ('[auth.jwt]\nsecret_env = "SECRET"\nclock_skew = 301', "3: auth.jwt.clock_skew: expected"),
    ('[auth.jwt]\nsecret_env = "SECRET"\nclock_skew = -1', "3: auth.jwt.clock_skew: expected"),
    ('[auth.jwt]\nsecret = "x"', "2: auth.jwt.secret: unknown key;"),
    ('[auth.jwt]\nsecret_env = "SECRET"\naudience = 7', "3: auth.jwt.audience: expected text,"),
    (
        '[auth]\nmode = ["api_key"]\nrequired_scopes = ["a"]',
        "3: auth.required_scopes: only tokens have",
    ),
    (
        '[auth]\nmode = ["api_key"]\nrequired_scopes = ["a b"]',
        "3: auth.required_scopes[0]: expected",
    ),
    ('[auth]\nmode = ["api_key"]\nmax_failures = 0', "3: auth.max_failures: expected at least 1"),
    ('[auth]\nmode = ["api_key"]\nresource = "gw.example"', "3: auth.resource: expected a url"),
    (
        '[auth]\nmode = ["api_key"]\nresource = "https://me:x@gw.example/mcp"',
        "3: auth.resource: it contains a user name or password, and it is public; remove it",
    ),
    (
        '[auth.jwt]\nsecret_env = "SECRET"\nauthorization_servers = ["https://a", "https://b@c"]',
        "3: auth.jwt.authorization_servers[1]: it contains a user name or password, and it is",
    ),
    ('[auth.api_keys]\nfile = ""', "2: auth.api_keys.file: expected text that is not blank"),
    ("auth = 7", "1: auth: expected a table, got a whole number;"),
    ("[auth]\njwt = 7", "2: auth.jwt: expected a table, got a whole number;"),
]


@pytest.mark.parametrize("mode", ['"basic"', "{}", "7"])
def test_an_invalid_mode_is_one_error(tmp_path: Path, mode: str) -> None:
    (error,) = errors_of(tmp_path, f"[auth]\nmode = {mode}")
    assert error.startswith('2: auth.mode: expected "api_key", "jwt" or "none"')


@pytest.mark.parametrize(("text", "error"), WRONG)
def test_an_error_is_reported_with_its_line_and_remedy(
    tmp_path: Path, text: str, error: str
) -> None:
    found = errors_of(tmp_path, text)
    assert any(each.startswith(error) for each in found), found
    assert SECRET not in str(found)
    assert ENVIRON["SHORT"] not in str(found)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost:9", "[::1]:9"])
def test_keys_may_be_fetched_unencrypted_from_loopback(tmp_path: Path, host: str) -> None:
    text = f"[auth.jwt]\n{JWKS}".replace("https://id.example/jwks", f"http://{host}/jwks")
    assert load_auth(tmp_path, text).jwt is not None


def test_a_misspelt_mode_hides_no_mistake_in_a_table(tmp_path: Path) -> None:
    for mode in ('"jwtt"', '["jwtt"]', '["api_key", "jwtt"]'):
        text = f'[http]\nlisten = "0.0.0.0:80"\n[auth]\nmode = {mode}\n[auth.jwt]\n'
        found = [error.split(": ")[1:] for error in errors_of(tmp_path, text)]
        assert [path.partition("[")[0] for path, *_ in found] == [
            "auth.mode",
            "auth.jwt",
            "auth.jwt",
            "auth.jwt",
        ]


def test_the_modes_default_to_the_configured_tables() -> None:
    assert auth_modes({}) == ()
    assert auth_modes({"api_keys": {}, "jwt": {}}) == ("jwt", "api_key")
    assert auth_modes({"mode": "none", "jwt": {}}) == ()
    assert auth_modes({"mode": "jwt", "api_keys": {}}) == ("jwt",)
    assert auth_modes({"mode": ["api_key"], "jwt": {}}) == ("api_key",)


def test_a_secret_may_contain_arbitrary_bytes(tmp_path: Path) -> None:
    file = write(tmp_path, '[auth.jwt]\nsecret_env = "RAW"\n')
    raw = "é" * 15 + "\udcff" * 2
    found = load_config(file, {"RAW": raw}).auth
    assert found is not None
    assert found.jwt is not None
    assert found.jwt.secret == "é".encode() * 15 + b"\xff\xff"


def test_auth_settings_written_to_another_folder_mean_the_same(tmp_path: Path) -> None:
    text = (
        '[auth]\nmode = ["jwt", "api_key"]\n[auth.jwt]\nissuer = "a"\naudience = ["b", "c"]\n'
        'jwks_file = "jwks.json"\n'
    )
    (tmp_path / "jwks.json").write_text("{}")
    first = load(tmp_path, text).auth
    other = tmp_path / "other"
    other.mkdir()
    again = load(other, to_toml(read_raw_config(tmp_path / "trunkline.toml"))).auth
    assert again == first


PUBLIC = '[http]\npublic_url = "https://gw.example/tools/"\n'
ISSUED = '[auth.jwt]\nissuer = "https://id.example"\njwks_url = "https://id.example/jwks"\n'


def test_the_public_url_is_the_audience_unless_another_is_set(tmp_path: Path) -> None:
    def audiences(*tables: str) -> tuple[str, ...]:
        found = load_auth(tmp_path, "".join(tables))
        assert found.jwt is not None
        return found.jwt.audiences

    assert audiences(PUBLIC, ISSUED) == ("https://gw.example/tools/mcp",)
    assert audiences(PUBLIC + 'path = "/m"\n', ISSUED) == ("https://gw.example/tools/m",)
    assert audiences(PUBLIC, '[auth]\nresource = "https://r.example"\n', ISSUED) == (
        "https://r.example",
    )
    assert audiences(PUBLIC, ISSUED, 'audience = "me"\n') == ("me",)


def test_a_resource_that_differs_from_the_public_url_is_noted(tmp_path: Path) -> None:
    def notes(resource: str) -> tuple[str, ...]:
        return load(tmp_path, f'{PUBLIC}[auth]\nresource = "{resource}"\n{ISSUED}').notes

    assert notes("https://gw.example/tools/mcp") == ()
    (note,) = notes("https://gw.example/mcp")
    assert (
        "4: auth.resource: differs from the URL of http.public_url, https://gw.example/tools/mcp"
    ) in note
