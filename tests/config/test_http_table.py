"""What must go together in `[http]`, and what must not."""

from pathlib import Path
from typing import Any

import pytest

from trunkline.config import Config, ConfigErrors, HttpSettings, load
from trunkline.config.http_table import TAKEN
from trunkline.transports.http_message import HttpLimits
from trunkline.transports.http_rules import HttpRules


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(f"[http]\n{text}\n", encoding="utf-8")
    return file


def http_of(folder: Path, text: str) -> HttpSettings:
    return load(write(folder, text), {"HOME": str(folder)}).http


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as caught:
        load(file, {"HOME": str(folder)})
    return [str(error).removeprefix(f"{file}:") for error in caught.value.errors]


def test_without_the_table_nobody_comes_by_http() -> None:
    assert Config().http == HttpSettings()
    assert Config().http.listen is None


def test_what_the_table_says_is_what_is_loaded(tmp_path: Path) -> None:
    found = http_of(
        tmp_path,
        'listen = "[::1]:8080"\npath = "/"\nmax_body = 2048\nsession_idle = 5\n'
        'allowed_hosts = ["gateway.example", "other.example:8443", "[::2]"]\n'
        'allowed_origins = ["https://app.example", "*"]',
    )
    assert found == HttpSettings(
        listen="[::1]:8080",
        path="/",
        max_body=2048,
        session_idle=5.0,
        allowed_hosts=("gateway.example", "other.example:8443", "[::2]"),
        allowed_origins=("https://app.example", "*"),
    )


SECONDS = ("head_timeout", "body_timeout", "write_timeout", "session_idle", "keep_alive")
COUNTS = (
    *("max_connections", "max_connections_per_address", "max_in_flight"),
    *("max_in_flight_per_principal", "max_sessions"),
)
WRONG: list[tuple[str, str]] = [
    ("listen = 8080", "expected text, got a whole number; put it in quotes"),
    ('listen = "8080"', 'expected a host and a port, such as "127.0.0.1:8080"'),
    ('listen = "127.0.0.1"', "expected a host and a port"),
    ('listen = "http://127.0.0.1:80"', "expected a host and a port"),
    ('listen = ":8080"', "expected a host and a port"),
    ('listen = "127.0.0.1:99999"', "expected a port of at most 65535"),
    ('path = "mcp"', 'expected a path that begins with "/"'),
    ('path = "/mcp?a"', 'expected a path that begins with "/", of letters, digits'),
    ('sse_path = "/s?x"', "expected a path"),
    ("ws_path = true", "expected text, got true or false"),
    ('allowed_hosts = "a.example"', "expected a list"),
    ('allowed_origins = "https://a.example"', "expected a list"),
    ("max_body = 1000", "expected at least 1024 and at most 1073741824"),
    ("max_body = 0.5", "expected a whole number, got a number"),
    ("session_life = 0", "expected more than 0"),
    ("session_life = 99999999", "expected more than 0 and at most 31622400"),
    ("certificate = 1", "expected text"),
    ('key = ""', "expected text that is not blank"),
    *((f"{key} = 0", "expected more than 0 and at most 86400") for key in SECONDS),
    *((f'{key} = "1"', "expected a number, got text") for key in SECONDS),
    *((f"{key} = 0", "expected at least 1 and at most 1000000") for key in COUNTS),
]


@pytest.mark.parametrize(("line", "why"), WRONG)
def test_every_key_is_checked(line: str, why: str, tmp_path: Path) -> None:
    key = line.partition(" ")[0]
    first, *_ = errors_of(tmp_path, line)
    assert first.startswith(f"2: http.{key}: {why}")


def test_every_key_was_tried_above() -> None:
    tried = {line.partition(" ")[0] for line, _ in WRONG}
    assert tried == set(HttpSettings.__struct_fields__)


def test_an_unknown_key_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    assert errors_of(tmp_path, "sessionidle = 1") == [
        '2: http.sessionidle: unknown key; did you mean "session_idle"?'
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.168.1.7", "gateway.example", "127.evil"])
def test_an_address_of_a_network_is_refused_with_the_reason_and_a_remedy(
    host: str, tmp_path: Path
) -> None:
    (error,) = errors_of(tmp_path, f'listen = "{host}:8080"')
    assert error.startswith("2: http.listen: expected a loopback address: nobody is asked who they")
    assert "write 127.0.0.1, localhost or [::1]" in error


@pytest.mark.parametrize(("given", "missing"), [("certificate", "key"), ("key", "certificate")])
def test_a_certificate_and_its_key_come_together(given: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "one.pem").touch()
    assert errors_of(tmp_path, f'{given} = "one.pem"') == [
        f"2: http.{given}: there is no {missing} beside it; TLS needs both"
    ]


def test_certificates_are_seen_from_the_file_and_from_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "tls").mkdir()
    for name in ("a.pem", "tls/b.pem"):
        (tmp_path / name).touch()
    found = http_of(tmp_path, 'certificate = "tls/b.pem"\nkey = "~/a.pem"')
    assert found.certificate == str(tmp_path / "tls" / "b.pem")
    assert found.key == str(tmp_path / "a.pem")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nope.pem", "no such file or directory"),
        (".", "is a directory"),
        ("a\\u0000", "not a file"),
    ],
)
def test_a_certificate_that_cannot_be_read_is_an_error(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch()
    (error,) = errors_of(tmp_path, f'certificate = "{name}"\nkey = "key.pem"')
    assert error.startswith(f"2: http.certificate: cannot be read: {why}")
    assert "as seen from the config file" in error


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ('path = "/sse"', "2: http.path: the same as sse_path; choose another path"),
        ('sse_path = "/ws"', "2: http.sse_path: the same as ws_path; choose another path"),
        ('ws_path = "/mcp"', "2: http.ws_path: the same as path; choose another path"),
        ('path = "/a"\nws_path = "/a"', "3: http.ws_path: the same as path; choose another path"),
        *(
            (
                f'path = "{path}"',
                "2: http.path: something else is there already; choose another path",
            )
            for path in TAKEN
        ),
    ],
)
def test_two_ways_in_have_two_paths(lines: str, error: str, tmp_path: Path) -> None:
    assert errors_of(tmp_path, lines) == [error]


def test_paths_may_change_places(tmp_path: Path) -> None:
    found = http_of(tmp_path, 'path = "/sse"\nsse_path = "/mcp"')
    assert (found.path, found.sse_path) == ("/sse", "/mcp")


def test_one_mistake_hides_no_other(tmp_path: Path) -> None:
    errors = errors_of(tmp_path, 'listen = "0.0.0.0:1"\npath = 3\nws_path = "/sse"\nkey = "x"')
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
def test_a_name_that_could_never_match_is_refused(line: str, tmp_path: Path) -> None:
    (error,) = errors_of(tmp_path, line)
    assert "[0]: expected " in error


def test_what_is_taken_is_what_the_door_has_there() -> None:
    assert HttpRules().messages_path in TAKEN


@pytest.mark.parametrize("part", [HttpRules, HttpLimits])
def test_the_defaults_are_those_of_the_parts(part: Any) -> None:
    ours, theirs = HttpSettings(), part()
    shared = set(part.__struct_fields__) & set(HttpSettings.__struct_fields__)
    apart = {"allowed_hosts", "allowed_origins", "max_connections", "max_connections_per_address"}
    for key in shared - apart:
        assert getattr(ours, key) == getattr(theirs, key), key
