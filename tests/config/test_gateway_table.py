"""`gateway.surface`: which tools are listed; `check_arguments`: how calls are checked; and the
defaults of keys of servers.
"""

from pathlib import Path

import pytest

from trunkline.app.build import argument_modes, build_upstream_settings, normalises_schemas
from trunkline.config import Config, ConfigErrors, load_config

DURATION = '"off", or a duration of at least "10s"'
SEARCH = '[servers.search]\nbuiltin = "search"\n'


def write(folder: Path, surface: str, more: str = "") -> Path:
    file = folder / "trunkline.toml"
    file.write_text(f"[gateway]\nsurface = {surface}\n{more}", encoding="utf-8")
    return file


def errors_of(folder: Path, surface: str, more: str = "") -> list[str]:
    file = write(folder, surface, more)
    with pytest.raises(ConfigErrors) as raised:
        load_config(file, {})
    return [str(error).removeprefix(f"{file}:") for error in raised.value.errors]


def test_by_default_all_tools_are_listed() -> None:
    assert Config().gateway.surface == "all"


@pytest.mark.parametrize(
    ("surface", "expected"),
    [
        ('"all"', "all"),
        ('"search"', "search"),
        ('["fs__*", "git__git_log"]', ("fs__*", "git__git_log")),
        ("[]", ()),
    ],
)
def test_the_surface_is_a_keyword_or_a_list_of_patterns(
    tmp_path: Path, surface: str, expected: object
) -> None:
    assert load_config(write(tmp_path, surface, SEARCH), {}).gateway.surface == expected


@pytest.mark.parametrize("more", ["", SEARCH + "disabled = true\n", '[servers.x]\ncommand = "x"\n'])
def test_the_search_surface_requires_a_search_server(tmp_path: Path, more: str) -> None:
    assert errors_of(tmp_path, '"search"', more) == [
        '2: gateway.surface: no server has builtin = "search", so no tool would be '
        'listed; add builtin = "search" below [servers.search]'
    ]


@pytest.mark.parametrize(
    ("surface", "error"),
    [
        ('"serch"', 'gateway.surface: expected "all" or "search"; did you mean "search"?'),
        ("true", 'gateway.surface: expected "all" or "search"; choose one'),
        ('["fs.*"]', "gateway.surface[0]: expected the name of a tool, with * and ? for what"),
        ("[1]", "gateway.surface[0]: expected text, got a whole number"),
    ],
)
def test_an_invalid_surface_is_refused(tmp_path: Path, surface: str, error: str) -> None:
    (message,) = errors_of(tmp_path, surface)
    assert error in message


def test_arguments_are_checked_leniently_unless_the_gateway_or_a_server_says_otherwise(
    tmp_path: Path,
) -> None:
    servers = "".join(
        f"[servers.{name}]\n{kind}\n{more}\n"
        for name, kind, more in (
            ("a", 'command = "x"', ""),
            ("b", 'url = "https://b.example/mcp"', 'check_arguments = "off"'),
            ("search", 'builtin = "search"', ""),
        )
    )
    found = load_config(write(tmp_path, '"all"', servers), {})
    assert argument_modes(found) == {"a": "lenient", "b": "off", "search": "off"}
    strict = load_config(write(tmp_path, '"all"\ncheck_arguments = "strict"', servers), {})
    assert argument_modes(strict) == {"a": "strict", "b": "off", "search": "off"}


@pytest.mark.parametrize("value", ["true", '"relaxed"'])
def test_the_modes_of_the_argument_check_are_named_in_errors(tmp_path: Path, value: str) -> None:
    (error,) = errors_of(tmp_path, f'"all"\ncheck_arguments = {value}')
    assert '"lenient"' in error
    assert '"off"' in error


def test_schemas_are_normalised_if_the_gateway_or_a_server_says_so(tmp_path: Path) -> None:
    server = '[servers.{0}]\ncommand = "x"\n{1}\n'
    servers = server.format("a", "") + server.format("b", "normalise_schemas = true")
    found = load_config(write(tmp_path, '"all"', servers), {})
    assert [normalises_schemas(each, found) for each in found.servers] == [False, True]
    servers = server.format("a", "") + server.format("b", "normalise_schemas = false")
    found = load_config(write(tmp_path, '"all"\nnormalise_schemas = true', servers), {})
    assert [normalises_schemas(each, found) for each in found.servers] == [True, False]
    settings = [build_upstream_settings(each, found) for each in found.servers]
    assert [each.normalises_schemas for each in settings] == [True, False]


def test_commands_stop_while_idle_if_the_gateway_or_a_server_says_so(tmp_path: Path) -> None:
    servers = "".join(
        f"[servers.{name}]\n{lines}\n"
        for name, lines in (
            ("a", 'command = "x"'),
            ("b", 'command = "x"\nidle_stop = "10s"'),
            ("c", 'command = "x"\nidle_stop = "off"'),
            ("d", 'url = "https://d.example/mcp"'),
            ("search", 'builtin = "search"'),
        )
    )

    def times(surface: str) -> list[float | None]:
        found = load_config(write(tmp_path, surface, servers), {})
        return [build_upstream_settings(each, found).idle_stop for each in found.servers]

    assert times('"all"') == [None, 10.0, None, None, None]
    assert times('"all"\nidle_stop = "15m"') == [900.0, 10.0, None, None, None]
    assert times('"all"\nidle_stop = "2h"') == [7200.0, 10.0, None, None, None]


@pytest.mark.parametrize("value", ['"9s"', '"0m"', '"10"', '"1d"', '"1.5h"', '""', "600", "true"])
def test_an_invalid_idle_stop_is_refused(tmp_path: Path, value: str) -> None:
    (error,) = errors_of(tmp_path, f'"all"\nidle_stop = {value}')
    is_text = value.startswith('"')
    assert error.startswith(
        f"3: gateway.idle_stop: expected {DURATION if is_text else 'text, got'}"
    )


@pytest.mark.parametrize("kind", ['url = "https://a.example/mcp"', 'builtin = "search"'])
def test_only_a_command_can_be_stopped_while_idle(tmp_path: Path, kind: str) -> None:
    (error,) = errors_of(tmp_path, '"all"', f'[servers.a]\n{kind}\nidle_stop = "10m"\n')
    assert error == "5: servers.a.idle_stop: belongs to a server with a command; leave it out"
