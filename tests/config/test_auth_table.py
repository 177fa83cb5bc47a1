"""What `[auth]` may say, and what must go together."""

from pathlib import Path

import pytest

from trunkline.config import AuthSettings, Config, ConfigErrors, load, read, to_toml
from trunkline.config.auth_table import MIN_SECRET, JwtSettings, modes_of

SECRET = "s" * MIN_SECRET
ENVIRON = {"SECRET": SECRET, "SHORT": "s" * (MIN_SECRET - 1), "HOME": "/nowhere"}
JWKS = 'jwks_url = "https://id.example/jwks"\nissuer = "https://id.example"\naudience = "a"'


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(text, encoding="utf-8")
    return file


def loaded(folder: Path, text: str) -> Config:
    return load(write(folder, text), ENVIRON)


def auth_of(folder: Path, text: str) -> AuthSettings:
    found = loaded(folder, text).auth
    assert found is not None
    return found


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as caught:
        load(file, ENVIRON)
    return [str(error).removeprefix(f"{file}:") for error in caught.value.errors]


@pytest.mark.holds("C30")
def test_without_the_table_nobody_is_asked() -> None:
    assert Config().auth is None


@pytest.mark.holds("O0.8")
def test_a_secret_is_all_that_tokens_of_our_own_need(tmp_path: Path) -> None:
    found = auth_of(tmp_path, '[auth.jwt]\nsecret_env = "SECRET"\n')
    assert found.asks
    assert found.keys is None
    assert found.jwt == JwtSettings(
        issuer="trunkline", audiences=("trunkline",), secret=SECRET.encode()
    )
    assert SECRET not in repr(found)


def test_what_the_table_says_is_what_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text("{}")
    found = auth_of(
        tmp_path,
        '[auth]\nmode = ["jwt", "key"]\nresource = "https://gw.example/mcp"\n'
        'required_scopes = ["a", "mcp:tools"]\nmax_failures = 5\n'
        '[auth.jwt]\nissuer = "https://id.example"\njwks_file = "jwks.json"\n'
        'role_claim = "a.b"\nclock_skew = 300\njwks_refresh = 10\n'
        'authorization_servers = ["https://as.example"]\n[auth.key]\nfile = "/etc/k.json"\n',
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
        keys=Path("/etc/k.json"),
        resource="https://gw.example/mcp",
        required_scopes=("a", "mcp:tools"),
        max_failures=5,
    )


def test_an_audience_may_be_several_and_an_issuer_with_an_address_gives_out_tokens(
    tmp_path: Path,
) -> None:
    text = f'[auth.jwt]\n{JWKS.replace("audience = ", "audience = [")}, "b"]\n'
    found = auth_of(tmp_path, text).jwt
    assert found is not None
    assert found.audiences == ("a", "b")
    assert found.authorization_servers == ("https://id.example",)


def test_keys_are_beside_the_configuration_unless_said_otherwise(tmp_path: Path) -> None:
    for text in ('[auth]\nmode = ["key"]\n', "[auth.key]\n"):
        found = auth_of(tmp_path, text)
        assert (found.keys, found.jwt) == (tmp_path / "keys.json", None)


def test_what_mode_leaves_out_is_not_looked_at(tmp_path: Path) -> None:
    found = auth_of(tmp_path, '[auth]\nmode = ["key"]\n[auth.jwt]\nsecret_env = "UNSET"\n')
    assert found.jwt is None


@pytest.mark.holds("M10", "C30")
def test_nobody_is_asked_only_where_that_is_said_aloud(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[auth]\nmode = "none"\n[http]\nlisten = "127.0.0.1:80"\n')
    assert config.auth is not None
    assert not config.auth.asks
    (note,) = config.notes
    assert "auth.mode: nobody is asked who they are" in note
    refused = '[auth]\nmode = "none"\n[http]\nlisten = "0.0.0.0:80"\n'
    (error,) = errors_of(tmp_path, refused)
    assert error.startswith("4: http.listen: expected a loopback address")


@pytest.mark.holds("C30")
def test_with_a_guard_a_network_may_be_listened_to(tmp_path: Path) -> None:
    guarded = '[auth]\nmode = ["key"]\n[http]\nlisten = "0.0.0.0:80"\n'
    config = loaded(tmp_path, guarded)
    assert config.http.listen == "0.0.0.0:80"
    assert ["in the clear" in note or "get 421" in note for note in config.notes] == [True] * 2
    (tmp_path / "c.pem").write_text("")
    more = 'certificate = "c.pem"\nkey = "c.pem"\nallowed_hosts = ["gw.example"]\n'
    assert loaded(tmp_path, guarded + more).notes == ()
    for open_one in ('[http]\nlisten = "0.0.0.0:80"\n', '[auth]\n[http]\nlisten = "0.0.0.0:80"\n'):
        assert any(
            "expected a loopback address" in error for error in errors_of(tmp_path, open_one)
        )


WRONG: list[tuple[str, str]] = [
    ("[auth]", '1: auth: nothing says who is let in; set mode to "key", "jwt" or "none"'),
    ("[auth]\nmode = []", "1: auth: nothing says who is let in;"),
    ('[auth]\nmode = "jwtt"', '2: auth.mode: expected "jwt", "key" or "none"; did you mean "jwt"?'),
    ("[auth]\nmode = {}", '2: auth.mode: expected "jwt", "key" or "none"; choose one'),
    ('[auth]\nmode = ["none"]', '2: auth.mode[0]: expected "jwt" or "key"; choose one'),
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
        "2: auth.jwt.jwks_url: anybody on the way could change the keys; write https://",
    ),
    (
        f"[auth.jwt]\n{JWKS}".replace("https://id.example/jwks", "https://a:x/"),
        "2: auth.jwt.jwks_url: anybody on the way",
    ),
    (
        f"[auth.jwt]\n{JWKS}".replace("https://id.example", "https://me:x@id.example"),
        "2: auth.jwt.jwks_url: a name or a password is in it, which is never sent; leave it out",
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
        '[auth]\nmode = ["key"]\nrequired_scopes = ["a"]',
        "3: auth.required_scopes: only tokens have",
    ),
    ('[auth]\nmode = ["key"]\nrequired_scopes = ["a b"]', "3: auth.required_scopes[0]: expected"),
    ('[auth]\nmode = ["key"]\nmax_failures = 0', "3: auth.max_failures: expected at least 1"),
    ('[auth]\nmode = ["key"]\nresource = "gw.example"', "3: auth.resource: expected a url"),
    (
        '[auth]\nmode = ["key"]\nresource = "https://me:x@gw.example/mcp"',
        "3: auth.resource: a name or a password is in it, and everybody is shown it; leave that",
    ),
    (
        '[auth.jwt]\nsecret_env = "SECRET"\nauthorization_servers = ["https://a", "https://b@c"]',
        "3: auth.jwt.authorization_servers[1]: a name or a password is in it, and everybody",
    ),
    ('[auth.key]\nfile = ""', "2: auth.key.file: expected text that is not blank"),
    ("auth = 7", "1: auth: expected a table, got a whole number;"),
    ("[auth]\njwt = 7", "2: auth.jwt: expected a table, got a whole number;"),
]


@pytest.mark.parametrize("mode", ['"basic"', "{}", "7"])
def test_a_mode_that_is_none_is_one_mistake(tmp_path: Path, mode: str) -> None:
    (error,) = errors_of(tmp_path, f"[auth]\nmode = {mode}")
    assert error.startswith('2: auth.mode: expected "jwt", "key" or "none"')


@pytest.mark.parametrize(("text", "error"), WRONG)
def test_a_mistake_has_its_line_and_its_remedy(tmp_path: Path, text: str, error: str) -> None:
    found = errors_of(tmp_path, text)
    assert any(each.startswith(error) for each in found), found
    assert SECRET not in str(found)
    assert ENVIRON["SHORT"] not in str(found)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost:9", "[::1]:9"])
def test_keys_may_come_from_this_machine_in_the_clear(tmp_path: Path, host: str) -> None:
    text = f"[auth.jwt]\n{JWKS}".replace("https://id.example/jwks", f"http://{host}/jwks")
    assert auth_of(tmp_path, text).jwt is not None


def test_modes_are_what_is_said_or_what_there_are_tables_for() -> None:
    assert modes_of({}) == ()
    assert modes_of({"key": {}, "jwt": {}}) == ("jwt", "key")
    assert modes_of({"mode": "none", "jwt": {}}) == ()
    assert modes_of({"mode": "jwt", "key": {}}) == ("jwt",)
    assert modes_of({"mode": ["key"], "jwt": {}}) == ("key",)


def test_a_secret_is_raw_bytes(tmp_path: Path) -> None:
    file = write(tmp_path, '[auth.jwt]\nsecret_env = "RAW"\n')
    raw = "é" * 15 + "\udcff" * 2
    found = load(file, {"RAW": raw}).auth
    assert found is not None
    assert found.jwt is not None
    assert found.jwt.secret == "é".encode() * 15 + b"\xff\xff"


def test_what_is_written_elsewhere_means_the_same(tmp_path: Path) -> None:
    text = (
        '[auth]\nmode = ["jwt", "key"]\n[auth.jwt]\nissuer = "a"\naudience = ["b", "c"]\n'
        'jwks_file = "jwks.json"\n'
    )
    (tmp_path / "jwks.json").write_text("{}")
    first = loaded(tmp_path, text).auth
    other = tmp_path / "other"
    other.mkdir()
    again = loaded(other, to_toml(read(tmp_path / "trunkline.toml"))).auth
    assert again == first
