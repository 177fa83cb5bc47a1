"""What `[kill_switch]` may say, and where it said it."""

from pathlib import Path

import pytest

from trunkline.config import Config, ConfigErrors, load, read, to_toml
from trunkline.config.kill_table import KillSettings, KillTable, check_kill
from trunkline.documents.parse import parse_toml

SERVERS = '[servers.fs]\ncommand = "x"\n[servers.mail]\ncommand = "y"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(f"{SERVERS}[kill_switch]\n{text}\n", encoding="utf-8")
    return file


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as caught:
        load(file, {})
    return [str(error).removeprefix(f"{file}:") for error in caught.value.errors]


def test_without_the_table_nothing_is_stopped() -> None:
    assert Config().kill_switch == KillSettings()
    assert Config().kill_switch.lines == {}


@pytest.mark.holds("O0.11")
def test_what_is_stopped_is_loaded_with_the_line_that_it_stands_on(tmp_path: Path) -> None:
    text = 'tools = ["fs__delete_*",\n  "mail__send"]\nservers = ["fs"]\nsubjects = ["anna"]\n'
    text += "all = true"
    found = load(write(tmp_path, text), {}).kill_switch
    assert found.tools == ("fs__delete_*", "mail__send")
    assert (found.servers, found.subjects, found.all) == (("fs",), ("anna",), True)
    assert found.lines == {
        ("tools", "fs__delete_*"): 6,
        ("tools", "mail__send"): 7,
        ("servers", "fs"): 8,
        ("subjects", "anna"): 9,
        ("all", ""): 10,
    }


def test_what_is_given_twice_stands_where_it_was_first(tmp_path: Path) -> None:
    found = load(write(tmp_path, 'tools = ["a",\n"a"]'), {}).kill_switch
    assert found.lines == {("tools", "a"): 6}


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
def test_what_is_wrong_is_said_with_its_line_and_its_remedy(
    tmp_path: Path, text: str, error: str
) -> None:
    (found,) = errors_of(tmp_path, text)
    assert error in found


def test_what_is_no_list_is_left_to_others() -> None:
    report = parse_toml("", "trunkline.toml").report
    check_kill({"kill_switch": {"servers": "x"}}, report)
    report.check()


def test_the_table_is_not_lost_when_a_file_is_imported(tmp_path: Path) -> None:
    draft = read(write(tmp_path, 'tools = ["a"]\nall = true'))
    assert '[kill_switch]\ntools = ["a"]\nall = true\n' in to_toml(draft)


def test_the_keys_are_those_of_the_table() -> None:
    assert KillTable.__struct_fields__ == ("tools", "servers", "subjects", "all")
