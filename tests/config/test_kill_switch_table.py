"""Loading and validating `[kill_switch]`, with the line of each entry."""

from pathlib import Path

import pytest

from trunkline.config import Config, ConfigErrors, load_config, read_raw_config, to_toml
from trunkline.config.policy_tables import KillSwitchSettings, KillSwitchTable, check_kill_switch
from trunkline.documents.parser import parse_toml

SERVERS = '[servers.fs]\ncommand = "x"\n[servers.mail]\ncommand = "y"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(f"{SERVERS}[kill_switch]\n{text}\n", encoding="utf-8")
    return file


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as raised:
        load_config(file, {})
    return [str(error).removeprefix(f"{file}:") for error in raised.value.errors]


def test_without_the_table_nothing_is_stopped() -> None:
    assert Config().kill_switch == KillSwitchSettings()
    assert Config().kill_switch.lines == {}


@pytest.mark.holds("O0.11")
def test_kill_switches_are_loaded_with_their_lines(tmp_path: Path) -> None:
    text = 'tools = ["fs__delete_*",\n  "mail__send"]\nservers = ["fs"]\nsubjects = ["anna"]\n'
    text += "all = true"
    settings = load_config(write(tmp_path, text), {}).kill_switch
    assert settings.tools == ("fs__delete_*", "mail__send")
    assert (settings.servers, settings.subjects, settings.all) == (("fs",), ("anna",), True)
    assert settings.lines == {
        ("tools", "fs__delete_*"): 6,
        ("tools", "mail__send"): 7,
        ("servers", "fs"): 8,
        ("subjects", "anna"): 9,
        ("all", ""): 10,
    }


def test_a_repeated_entry_has_the_line_of_the_first(tmp_path: Path) -> None:
    settings = load_config(write(tmp_path, 'tools = ["a",\n"a"]'), {}).kill_switch
    assert settings.lines == {("tools", "a"): 6}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('servers = ["sf"]', '6: kill_switch.servers[0]: there is no server "sf"; '),
        ('servers = ["Mail"]', 'did you mean "mail"?'),
        ('tools = ["ﬁle"]', "kill_switch.tools[0]: expected the name of a tool"),
        ('subjects = [""]', "kill_switch.subjects[0]: expected a name of up to 256"),
        ("all = 1", "kill_switch.all: expected"),
        ('tool = ["x"]', '6: kill_switch.tool: unknown key; did you mean "tools"?'),
        ("servers = 1", "kill_switch.servers: expected"),
        ("servers = [1]", "kill_switch.servers[0]: expected"),
    ],
)
def test_an_error_is_reported_with_its_line_and_remedy(
    tmp_path: Path, text: str, error: str
) -> None:
    (message,) = errors_of(tmp_path, text)
    assert error in message


def test_check_kill_switch_ignores_a_value_of_the_wrong_type() -> None:
    collector = parse_toml("", "trunkline.toml").errors
    check_kill_switch({"kill_switch": {"servers": "x"}}, collector)
    collector.raise_if_any()


def test_importing_a_file_keeps_the_table(tmp_path: Path) -> None:
    raw_config = read_raw_config(write(tmp_path, 'tools = ["a"]\nall = true'))
    assert '[kill_switch]\ntools = ["a"]\nall = true\n' in to_toml(raw_config)


def test_the_table_has_one_key_per_target_kind() -> None:
    assert KillSwitchTable.__struct_fields__ == ("tools", "servers", "subjects", "all")
