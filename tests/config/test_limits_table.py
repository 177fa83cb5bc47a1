"""Loading and validating `[limits]`."""

from pathlib import Path

import pytest

from trunkline.config import (
    Config,
    ConfigErrors,
    LimitsSettings,
    LimitTable,
    SubjectLimitTable,
    load_config,
)

SERVER = '\n[servers.fs]\ncommand = "x"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(text + SERVER, encoding="utf-8")
    return file


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as raised:
        load_config(file, {})
    return [str(error).removeprefix(f"{file}:") for error in raised.value.errors]


def test_without_the_table_nothing_is_limited(tmp_path: Path) -> None:
    assert Config().limits is None
    assert load_config(write(tmp_path, ""), {}).limits is None


def test_an_empty_table_limits_each_tool_to_1000_calls_per_minute(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "[limits]"), {}).limits == LimitsSettings(default_rpm=1000)


def test_a_limit_is_a_number_or_a_table(tmp_path: Path) -> None:
    limits = load_config(
        write(
            tmp_path,
            """
[limits]
default_rpm = 0
max_concurrent = 9
[limits.tools]
"fs__*" = 60
"fs__read" = { rpm = 1, concurrent = 2, total_rpm = 3, total_concurrent = 4 }
[limits.servers]
fs = { total_rpm = 5 }
[limits.subjects]
"ci@example.com" = { concurrent = 6 }
[limits.roles]
dev = 7
""",
        ),
        {},
    ).limits
    assert limits == LimitsSettings(
        default_rpm=0,
        max_concurrent=9,
        tools={
            "fs__*": 60,
            "fs__read": LimitTable(rpm=1, concurrent=2, total_rpm=3, total_concurrent=4),
        },
        servers={"fs": LimitTable(total_rpm=5)},
        subjects={"ci@example.com": SubjectLimitTable(concurrent=6)},
        roles={"dev": 7},
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("limits = 3", "1: limits: expected a table, got a whole number; give it keys of its own"),
        ("[limits]\nrpm = 3", "2: limits.rpm: unknown key; known keys are default_rpm,"),
        ("[limits]\ndefault_rpm = -1", "2: limits.default_rpm: expected at least 0"),
        ("[limits.tools]\nfs__read = 0", "2: limits.tools.fs__read: expected at least 1"),
        ('[limits.tools]\n"a b" = 1', '2: limits.tools."a b": expected a name, with * and ?'),
        ('[limits.tools]\na = "1"', "2: limits.tools.a: expected a whole number, got text"),
        ("[limits.tools]\na = [1]", "2: limits.tools.a: expected a whole number, got a list"),
        (
            "[limits.tools]\na = { concurent = 1 }",
            '2: limits.tools.a.concurent: unknown key; did you mean "concurrent"',
        ),
        (
            "[limits.servers]\nfz = 1",
            "2: limits.servers.fz: there is no server with this name; correct it",
        ),
        ("[limits.subjects]\na = { total_rpm = 1 }", "2: limits.subjects.a.total_rpm: unknown key"),
        ('[limits.roles]\n" a" = 1', '2: limits.roles." a": expected up to 256 characters'),
    ],
)
def test_an_error_is_reported_with_its_line_and_remedy(
    tmp_path: Path, text: str, expected: str
) -> None:
    (error,) = errors_of(tmp_path, text)
    assert error.startswith(expected)


def test_a_server_pattern_may_match_no_server(tmp_path: Path) -> None:
    limits = load_config(write(tmp_path, '[limits.servers]\n"web*" = 1'), {}).limits
    assert limits is not None
    assert limits.servers == {"web*": 1}
