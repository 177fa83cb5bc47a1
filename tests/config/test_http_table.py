"""Loading and validating `[http]`."""

from pathlib import Path
from typing import Any

import pytest

from trunkline.config import Config, ConfigErrors, HttpSettings, load_config
from trunkline.config.gateway_tables import RESERVED_PATHS
from trunkline.endpoints.auth import EndpointSettings
from trunkline.http.message import HttpLimits


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(f"[http]\n{text}\n", encoding="utf-8")
    return file


def load_http(folder: Path, text: str) -> HttpSettings:
    return load_config(write(folder, text), {"HOME": str(folder)}).http


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as raised:
        load_config(file, {"HOME": str(folder)})
    return [str(error).removeprefix(f"{file}:") for error in raised.value.errors]


def test_without_the_table_the_gateway_does_not_listen() -> None:
    assert Config().http == HttpSettings()
    assert Config().http.listen is None


def test_every_key_of_the_table_is_loaded(tmp_path: Path) -> None:
    settings = load_http(
        tmp_path,
        'listen = "[::1]:8080"\npublic_url = "https://gateway.example"\n'
        'path = "/"\nmax_body = 2048\nsession_idle = 5\n'
        'allowed_hosts = ["gateway.example", "other.example:8443", "[::2]"]\n'
        'allowed_origins = ["https://app.example", "*"]',
    )
    assert settings == HttpSettings(
        listen="[::1]:8080",
        public_url="https://gateway.example",
        path="/",
        max_body=2048,
        session_idle=5.0,
        allowed_hosts=("gateway.example", "other.example:8443", "[::2]"),
        allowed_origins=("https://app.example", "*"),
    )


SECONDS = ("head_timeout", "body_timeout", "write_timeout", "session_idle", "sse_ping_interval")
COUNTS = (
    *("max_connections", "max_connections_per_address", "max_in_flight"),
    *("max_in_flight_per_principal", "max_sessions", "max_sessions_per_principal"),
    *("max_streams", "max_streams_per_principal"),
)
WRONG: list[tuple[str, str]] = [
    ("listen = 8080", "expected text, got a whole number; put it in quotes"),
    ('listen = "8080"', 'expected a host and a port, such as "127.0.0.1:8080"'),
    ('listen = "127.0.0.1"', "expected a host and a port"),
    ('listen = "http://127.0.0.1:80"', "expected a host and a port"),
    ('listen = ":8080"', "expected a host and a port"),
    ('listen = "127.0.0.1:99999"', "expected a port of at most 65535"),
    ("public_url = 1", "expected text, got a whole number"),
    *(
        (f'public_url = "{url}"', "expected http:// or https://, a host and maybe a path")
        for url in (
            *("gateway.example", "ftp://gateway.example", "https://", "https:///mcp"),
            *("https://ann:secret@gateway.example", "https://gateway.example/?a=1"),
            *("https://gateway.example/#top", "https://gateway.example//a"),
            *("https://gateway.example/a/../b", "https://gateway.example/./a"),
            *(
                "https://gateway.example/a b",
                "https://g\u00e4teway.example",
                "https://gw.example/%2e",
            ),
        )
    ),
    *(
        (f'public_url = "{url}"', "clients cannot connect to this address; write a host")
        for url in (
            *("https://0.0.0.0:8080", "http://[::]:8080", "https://gw.example:0"),
            *("https://gw.example:99999", "https://[zz]", "https://:80"),
        )
    ),
    ('path = "mcp"', 'expected a path that begins with "/"'),
    ('path = "/mcp?a"', 'expected a path that begins with "/", of letters, digits'),
    ('sse_path = "/s?x"', "expected a path"),
    ("ws_path = true", "expected text, got true or false"),
    ('allowed_hosts = "a.example"', "expected a list"),
    ('allowed_origins = "https://a.example"', "expected a list"),
    ("max_body = 1000", "expected at least 1024 and at most 1073741824"),
    ("max_receive_buffer = 1", "expected at least 2048 and at most"),
    ("max_body = 0.5", "expected a whole number, got a number"),
    ("max_buffered_bytes = 1023", "expected at least 1024 and at most 1099511627776"),
    ("max_buffered_bytes_per_principal = 1", "expected at least 1024 and at most 1099511627776"),
    ("session_max_age = 0", "expected more than 0"),
    ("session_max_age = 99999999", "expected more than 0 and at most 31622400"),
    ('trusted_proxies = "10.0.0.0/8"', "expected a list"),
    ("allow_remote_without_auth = 1", "expected true or false"),
    ("tls_cert = 1", "expected text"),
    ('tls_key = ""', "expected text that is not blank"),
    *((f"{key} = 0", "expected more than 0 and at most 86400") for key in SECONDS),
    *((f'{key} = "1"', "expected a number, got text") for key in SECONDS),
    *((f"{key} = 0", "expected at least 1 and at most 1000000") for key in COUNTS),
]


@pytest.mark.parametrize(("line", "why"), WRONG)
def test_every_key_is_validated(line: str, why: str, tmp_path: Path) -> None:
    key = line.partition(" ")[0]
    first, *_ = errors_of(tmp_path, line)
    assert first.startswith(f"2: http.{key}: {why}")


def test_the_table_of_errors_covers_every_key() -> None:
    tested = {line.partition(" ")[0] for line, _ in WRONG}
    assert tested == set(HttpSettings.__struct_fields__)


def test_an_unknown_key_is_reported_with_a_suggestion(tmp_path: Path) -> None:
    assert errors_of(tmp_path, "sessionidle = 1") == [
        '2: http.sessionidle: unknown key; did you mean "session_idle"?'
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.168.1.7", "gateway.example", "127.evil"])
def test_a_network_address_without_auth_is_refused_with_a_remedy(host: str, tmp_path: Path) -> None:
    (error,) = errors_of(tmp_path, f'listen = "{host}:8080"')
    assert error.startswith(
        "2: http.listen: expected a loopback address: without [auth] every client"
    )
    assert "write 127.0.0.1, localhost or [::1]" in error


@pytest.mark.parametrize(("present", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_a_certificate_requires_its_key(present: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "one.pem").touch()
    assert errors_of(tmp_path, f'{present} = "one.pem"') == [
        f"2: http.{present}: {missing} is missing; TLS needs both"
    ]


def test_certificate_paths_start_at_the_configuration_file_or_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "tls").mkdir()
    for name in ("a.pem", "tls/b.pem"):
        (tmp_path / name).touch()
    settings = load_http(tmp_path, 'tls_cert = "tls/b.pem"\ntls_key = "~/a.pem"')
    assert settings.tls_cert == str(tmp_path / "tls" / "b.pem")
    assert settings.tls_key == str(tmp_path / "a.pem")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nope.pem", "no such file or directory"),
        (".", "is a directory"),
        ("a\\u0000", "not a file"),
    ],
)
def test_an_unreadable_certificate_is_an_error(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch()
    (error,) = errors_of(tmp_path, f'tls_cert = "{name}"\ntls_key = "key.pem"')
    assert error.startswith(f"2: http.tls_cert: cannot be read: {why}")
    assert "as seen from the config file" in error


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ('path = "/sse"', "2: http.path: same path as sse_path; choose another path"),
        ('sse_path = "/ws"', "2: http.sse_path: same path as ws_path; choose another path"),
        ('ws_path = "/mcp"', "2: http.ws_path: same path as path; choose another path"),
        ('path = "/a"\nws_path = "/a"', "3: http.ws_path: same path as path; choose another path"),
        *(
            (
                f'path = "{path}"',
                "2: http.path: this path is reserved; choose another path",
            )
            for path in RESERVED_PATHS
        ),
    ],
)
def test_every_endpoint_has_its_own_path(lines: str, error: str, tmp_path: Path) -> None:
    assert errors_of(tmp_path, lines) == [error]


def test_endpoint_paths_can_be_swapped(tmp_path: Path) -> None:
    settings = load_http(tmp_path, 'path = "/sse"\nsse_path = "/mcp"')
    assert (settings.path, settings.sse_path) == ("/sse", "/mcp")


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    errors = errors_of(tmp_path, 'listen = "0.0.0.0:1"\npath = 3\nws_path = "/sse"\ntls_key = "x"')
    assert [error.partition(": ")[0] for error in errors] == ["2", "3", "4", "5", "5"]


@pytest.mark.parametrize(
    "line",
    [
        'allowed_hosts = ["https://gateway.example"]',
        'allowed_hosts = ["a.example/mcp"]',
        'allowed_origins = ["app.example"]',
        'allowed_origins = ["https://app.example/"]',
    ],
)
def test_a_host_or_origin_that_can_never_match_is_refused(line: str, tmp_path: Path) -> None:
    (error,) = errors_of(tmp_path, line)
    assert "[0]: expected " in error


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ("proxy.example", "expected an address or a network"),
        ("10.0.0.1/8", "10.0.0.1/8 has host bits set; write a network as 10.0.0.0/8"),
        ("10.0.0.0/99", "does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_a_trusted_proxy_must_be_a_network(network: str, why: str, tmp_path: Path) -> None:
    (error,) = errors_of(tmp_path, f'trusted_proxies = ["{network}"]')
    assert why in error
    assert load_http(tmp_path, 'trusted_proxies = ["::1"]').trusted_proxies == ("::1",)


def test_the_receive_buffer_has_room_for_two_bodies(tmp_path: Path) -> None:
    (error,) = errors_of(tmp_path, "max_body = 1073741824")
    assert error == (
        "2: http.max_body: two bodies of max_body = 1073741824 bytes exceed max_receive_buffer = "
        "268435456; set max_receive_buffer to at least 2147483648"
    )
    (error,) = errors_of(tmp_path, "max_receive_buffer = 4096")
    assert error.startswith("2: http.max_receive_buffer: two bodies of max_body = 4194304 bytes")
    both = "max_body = 2048\nmax_receive_buffer = 4096"
    assert load_http(tmp_path, both).max_receive_buffer == 4096


def test_the_messages_path_of_the_sse_endpoint_is_reserved() -> None:
    assert EndpointSettings().messages_path in RESERVED_PATHS


@pytest.mark.parametrize("part", [EndpointSettings, HttpLimits])
def test_the_defaults_equal_those_of_the_components(part: Any) -> None:
    defaults, part_defaults = HttpSettings(), part()
    shared = set(part.__struct_fields__) & set(HttpSettings.__struct_fields__)
    different = {
        "allowed_hosts",
        "allowed_origins",
        "max_connections",
        "max_connections_per_address",
    }
    for key in shared - different:
        assert getattr(defaults, key) == getattr(part_defaults, key), key


def notes_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    notes = load_config(file, {"HOME": str(folder)}).notes
    return [note.removeprefix(f"{file}:") for note in notes]


def test_a_public_url_with_the_path_of_mcp_is_noted(tmp_path: Path) -> None:
    assert notes_of(tmp_path, 'public_url = "https://gateway.example/mcp"') == [
        "2: http.public_url: MCP is then at https://gateway.example/mcp/mcp; "
        "write https://gateway.example unless a proxy removes the first /mcp"
    ]
    for text in ('public_url = "https://a.example/mcp"\npath = "/"', 'public_url = "https://a/b"'):
        assert notes_of(tmp_path, text) == []


def test_a_public_url_answers_the_notes_about_a_network_address(tmp_path: Path) -> None:
    (tmp_path / "keys.json").touch(0o600)
    listen, auth = 'listen = "0.0.0.0:8080"\n', '\n[auth]\nmode = "api_key"'
    assert len(notes_of(tmp_path, listen + auth)) == 2
    assert notes_of(tmp_path, listen + 'public_url = "https://gw.example"' + auth) == []
    (note,) = notes_of(tmp_path, listen + 'public_url = "http://gw.example"' + auth)
    assert "tokens are sent unencrypted" in note
