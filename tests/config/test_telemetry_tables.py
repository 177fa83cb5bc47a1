"""Loading and validating `[metrics]`, `[traces]` and `[log]`."""

from pathlib import Path

import pytest

from trunkline.config import (
    Config,
    ConfigErrors,
    LogSettings,
    MetricsSettings,
    TracesSettings,
    load_config,
    read_raw_config,
    to_toml,
)

ENV = {"HOME": "/nonexistent", "TOKEN": "s3cret", "EMPTY": "", "ODD": "a b", "LINES": "a\nb"}


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(text, encoding="utf-8")
    return file


def load(folder: Path, text: str) -> Config:
    return load_config(write(folder, text), ENV)


def test_every_key_of_the_tables_is_loaded(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        '[metrics]\nlisten = "127.0.0.1:9201"\ntoken_env = "TOKEN"\nmax_series = 10\n'
        '[traces]\nendpoint = "https://o.example:4318"\nsample = 1\n'
        'headers = { Authorization = "Bearer ${TOKEN}" }\n'
        '[log]\nformat = "json"\nlevel = "debug"\n',
    )
    assert (found.metrics.token, found.metrics.max_series) == ("s3cret", 10)
    assert found.traces.headers == {"Authorization": "Bearer s3cret"}
    assert (found.traces.sample, found.traces.service_name) == (1.0, "trunkline")
    assert (found.log.format, found.log.level) == ("json", "debug")
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[metrics]\nlisten = "x"', "2: metrics.listen: expected a host and a port"),
        (
            '[metrics]\nlisten = "0.0.0.0:9201"',
            "2: metrics.listen: expected a loopback address: everyone who reaches it could read "
            "them; set token_env as well, or write 127.0.0.1",
        ),
        ('[metrics]\ntoken_env = "NONE"', "2: metrics.token_env: the variable NONE is not set"),
        ('[metrics]\ntoken_env = "EMPTY"', "2: metrics.token_env: the variable EMPTY is not set"),
        ('[metrics]\ntoken_env = "ODD"', "2: metrics.token_env: it contains invalid characters"),
        (
            '[metrics]\ntoken_env = "s3-cret"',
            "2: metrics.token_env: expected the name of a variable",
        ),
        ('[metrics]\npath = "/mcp"', "2: metrics.path: this path is reserved"),
        ('[metrics]\npath = "/ready"', "2: metrics.path: this path is reserved"),
        (
            '[metrics]\npath = "/x"\n[http]\nws_path = "/x"',
            "2: metrics.path: this path is reserved",
        ),
        (
            '[metrics]\npath = "/m"\n[http]\nlisten = "0.0.0.0:80"\n[auth]\nmode = "api_key"',
            "2: metrics.path: http.listen is not a loopback address: everyone who reaches "
            "that address could read them; set token_env in [metrics], or set listen in [metrics]",
        ),
        ('[metrics]\npath = "/m"\n[http]\nlisten = "x"', "4: http.listen: expected a host and"),
        (
            '[metrics]\npath = "/m"\n[http]\nlisten = "0.0.0.0:99999"',
            "4: http.listen: expected a port of at most 65535",
        ),
        ("[metrics]\nport = 1", "2: metrics.port: unknown key"),
        ('[traces]\nendpoint = "o.example"', "2: traces.endpoint: expected http:// or https://"),
        ('[traces]\nendpoint = "http://a:b@h"', "2: traces.endpoint: expected http:// or https://"),
        ('[traces]\nendpoint = "http://h:x"', "2: traces.endpoint: expected http:// or https://"),
        ('[traces]\nendpoint = "${NONE}"', "2: traces.endpoint: the variable NONE is not set"),
        ("[traces]\nsample = 2", "2: traces.sample: expected at least 0 and at most 1"),
        ('[traces]\nurl = "x"', '2: traces.url: unknown key; write "endpoint"'),
        (
            '[traces]\nheaders = { Host = "x" }',
            "2: traces.headers.Host: the gateway sends this header itself",
        ),
        (
            '[traces]\nheaders = { Accept-Encoding = "gzip" }',
            "2: traces.headers.Accept-Encoding: the gateway sends this header itself",
        ),
        (
            '[traces]\nheaders = { X = "${LINES}" }',
            "2: traces.headers.X: invalid header value",
        ),
        ('[log]\nlevel = "loud"', "2: log.level: expected"),
        ("log = 1", "1: log: expected a table"),
    ],
)
def test_an_error_is_reported_with_its_line_and_remedy(
    tmp_path: Path, text: str, error: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigErrors) as raised:
        load_config(file, ENV)
    errors = [str(problem).removeprefix(f"{file}:") for problem in raised.value.errors]
    assert errors[0].startswith(error)
    assert "s3cret" not in str(raised.value)


def test_an_invalid_address_hides_no_mistake_in_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as raised:
        load(tmp_path, '[metrics]\nlisten = "x"\npath = "/mcp"\n')
    assert [error.key for error in raised.value.errors] == ["metrics.listen", "metrics.path"]


def test_metrics_on_a_network_address_require_a_token(tmp_path: Path) -> None:
    found = load(tmp_path, '[metrics]\nlisten = "0.0.0.0:9201"\ntoken_env = "TOKEN"')
    assert found.metrics.listen == "0.0.0.0:9201"


@pytest.mark.parametrize(
    "metrics",
    ['path = "/m"\ntoken_env = "TOKEN"', 'path = "/m"\nlisten = "127.0.0.1:1"', "max_series = 10"],
)
def test_the_main_address_may_be_public_if_it_serves_no_unprotected_metrics(
    tmp_path: Path, metrics: str
) -> None:
    text = f'[metrics]\n{metrics}\n[http]\nlisten = "0.0.0.0:80"\n[auth]\nmode = "api_key"\n'
    found = load(tmp_path, text).metrics
    found.check_host("0.0.0.0")
    MetricsSettings(path="/m").check_host("127.0.0.1")


def test_the_tables_can_be_written_back_with_their_references(tmp_path: Path) -> None:
    text = '[metrics]\npath = "/m"\n\n[traces]\nheaders = { X = "${TOKEN}" }\n'
    again = to_toml(read_raw_config(write(tmp_path, text)))
    assert "${TOKEN}" in again
    assert load(tmp_path, again).traces.headers == {"X": "s3cret"}


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (MetricsSettings(), None),
        (MetricsSettings(path="/m"), "/m"),
        (MetricsSettings(listen="127.0.0.1:1"), "/metrics"),
        (MetricsSettings(listen="127.0.0.1:1", path="/m"), "/m"),
    ],
)
def test_metrics_are_served_only_if_configured(settings: MetricsSettings, path: str | None) -> None:
    assert settings.url_path == path


def test_printing_shows_no_secret() -> None:
    shown = repr(MetricsSettings(path="/m", token="s3cret"))
    shown += repr(TracesSettings(endpoint="http://h?key=s3cret", headers={"x": "s3cret"}))
    assert "s3cret" not in shown


def test_tracing_is_off_by_default() -> None:
    assert TracesSettings().endpoint is None
    assert (LogSettings().format, LogSettings().level) == ("auto", None)
