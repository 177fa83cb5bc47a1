"""`[limits]`: how much anybody may ask for, and what is wrong with a table that says so."""

from pathlib import Path

import pytest

from trunkline.config import Config, ConfigErrors, LimitsSettings, LimitTable, OwnLimitTable, load

SERVER = '\n[servers.fs]\ncommand = "x"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(text + SERVER, encoding="utf-8")
    return file


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as caught:
        load(file, {})
    return [str(error).removeprefix(f"{file}:") for error in caught.value.errors]


def test_without_the_table_nothing_is_limited(tmp_path: Path) -> None:
    assert Config().limits is None
    assert load(write(tmp_path, ""), {}).limits is None


def test_with_the_table_alone_each_tool_has_a_thousand_calls_a_minute(tmp_path: Path) -> None:
    assert load(write(tmp_path, "[limits]"), {}).limits == LimitsSettings(default_rpm=1000)


def test_a_number_or_a_table_says_how_much(tmp_path: Path) -> None:
    limits = load(
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
        subjects={"ci@example.com": OwnLimitTable(concurrent=6)},
        roles={"dev": 7},
    )


@pytest.mark.parametrize(
    ("text", "said"),
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
        ("[limits.servers]\nfz = 1", "2: limits.servers.fz: no server has this name; correct it"),
        ("[limits.subjects]\na = { total_rpm = 1 }", "2: limits.subjects.a.total_rpm: unknown key"),
        ('[limits.roles]\n" a" = 1', '2: limits.roles." a": expected up to 256 characters'),
    ],
)
def test_a_mistake_has_its_line_and_its_remedy(tmp_path: Path, text: str, said: str) -> None:
    (error,) = errors_of(tmp_path, text)
    assert error.startswith(said)


def test_a_pattern_of_servers_may_fit_none_yet(tmp_path: Path) -> None:
    limits = load(write(tmp_path, '[limits.servers]\n"web*" = 1'), {}).limits
    assert limits is not None
    assert limits.servers == {"web*": 1}
