"""References: what they stand for, what is said when they stand for nothing."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.config.paths import MAX_FILE
from trunkline.config.substitute import Reference, parts, substitute, variable_of
from trunkline.config.surroundings import Surroundings

ENVIRON = {"TOKEN": "abc", "EMPTY": "", "HOME": "/home/me", "API_KEY": "k", "NESTED": "${TOKEN}"}
HERE = Path("/etc/trunkline")


def resolve(
    text: str, around: Surroundings | None = None, is_client: bool = False
) -> tuple[str, list[str]]:
    problems: list[str] = []
    around = around or Surroundings(ENVIRON, HERE, {}, is_client)
    return substitute(text, around, lambda why, fix: problems.append(f"{why}; {fix}")), problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("Bearer ${TOKEN}", "Bearer abc"),
        ("${TOKEN}${TOKEN}", "abcabc"),
        ("${env:TOKEN}", "abc"),
        ("${EMPTY}", ""),
        ("${EMPTY:-x}", "x"),
        ("${NOPE:-}", ""),
        ("${NOPE:-a b:-c}", "a b:-c"),
        ("${env:NOPE:-x}", "x"),
        ("${TOKEN:-x}", "abc"),
        ("${NESTED}", "${TOKEN}"),
        ("$HOME/$1", "$HOME/$1"),
        ("$", "$"),
        ("$$", "$"),
        ("$${TOKEN}", "${TOKEN}"),
        ("$$$${TOKEN}", "$${TOKEN}"),
        ("$$${TOKEN}", "$abc"),
        ("}{", "}{"),
        ("${userHome}/x", "/home/me/x"),
        ("${workspaceFolder}/x", "/etc/trunkline/x"),
        ("${workspaceFolderBasename}", "trunkline"),
        ("${pathSeparator}${/}", os.sep * 2),
        ("${input:api-key}", "k"),
    ],
)
def test_a_reference_becomes_what_it_stands_for(text: str, expected: str) -> None:
    assert resolve(text) == (expected, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NOPE}", "the variable NOPE is not set; set it, or write ${NOPE:-default}"),
        ("${env:NOPE}", "the variable NOPE is not set; set it, or write ${NOPE:-default}"),
        ("${input:my.id}", 'the input "my.id" has no value; set the variable MY_ID'),
        ("${command:x}", "only VS Code can resolve ${command:…} and ${config:…}; write ${VAR}"),
    ],
)
@pytest.mark.parametrize("is_client", [False, True])
def test_a_reference_to_nothing_is_named_with_its_remedy(
    text: str, problem: str, is_client: bool
) -> None:
    assert resolve(text, is_client=is_client)[1] == [problem]


@pytest.mark.parametrize("text", ["${", "${}", "${A${B}}", "${1}", "${a b}", "${file:}", "${A:B}"])
def test_what_is_no_reference_is_refused_in_our_files_and_left_alone_in_others(text: str) -> None:
    _, problems = resolve(text, Surroundings({"A": "", "B": ""}, HERE))
    assert problems[0] == (
        "expected ${VAR}, ${VAR:-default} or ${file:path}; write $${ for a literal ${"
    )
    there = Surroundings({"A": "", "B": "${B}"}, HERE, is_client=True)
    assert resolve(text, there) == (text, [])


def test_other_programs_files_have_no_escapes() -> None:
    assert resolve("pa$$word", is_client=True) == ("pa$$word", [])
    assert resolve("$${TOKEN}", is_client=True) == ("$$" + "{TOKEN}", [])


def test_every_problem_of_a_string_is_told() -> None:
    assert len(resolve("${A} ${B} ${TOKEN} ${")[1]) == 3


def test_an_input_has_the_default_of_its_file() -> None:
    around = Surroundings({"SET": "s", "BLANK": ""}, HERE, {"set": "d", "a b": "d", "blank": "d"})
    assert resolve("${input:set} ${input:a b} ${input:blank}", around) == ("s d d", [])
    around = Surroundings({}, HERE, {"key": None})
    assert resolve("${input:key}", around)[1]


def test_a_home_that_nobody_knows_is_a_problem() -> None:
    assert resolve("${userHome}", Surroundings({}, HERE)) == (
        "",
        ["${userHome} is not known here; set the variable HOME"],
    )
    assert resolve("${userHome}", Surroundings({"USERPROFILE": "C:"}, HERE)) == ("C:", [])


@pytest.mark.parametrize("folder", [".vscode", ".cursor"])
def test_the_folder_of_a_project_is_around_that_of_its_settings(folder: str) -> None:
    around = Surroundings({}, Path("/project") / folder)
    assert resolve("${workspaceFolder} ${workspaceFolderBasename}", around) == (
        "/project project",
        [],
    )


def test_a_file_is_seen_from_the_config_file_and_stripped(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xef\xbb\xbf abc\r\n\n")
    around = Surroundings({"HOME": str(tmp_path)}, tmp_path)
    for name in ("token", "./token", "~/token", str(tmp_path / "token")):
        assert resolve(f"<${{file:{name}}}>", around) == ("<abc>", [])


def test_a_file_that_is_no_good_is_named_and_its_text_is_not(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * (MAX_FILE + 1))
    (tmp_path / "odd").write_bytes(b"secret\xff")
    (tmp_path / "nul").write_bytes(b"secret\0")
    around = Surroundings({}, tmp_path)
    expected = {
        "nope": 'the file "nope" cannot be read: no such file or directory; check its name',
        "": "expected ${VAR}",
        ".": 'the file "." cannot be read: is a directory',
        "long": 'the file "long" is longer than 65536 bytes; name a smaller one',
        "odd": 'the file "odd" is not UTF-8; save it as UTF-8',
        "nul": 'the file "nul" is no text; name another',
        "a\0b": 'the file "a\\u0000b" cannot be read: not a file name',
    }
    for name, words in expected.items():
        value, (problem,) = resolve(f"${{file:{name}}}", around)
        assert value == ""
        assert problem.startswith(words)


def test_a_file_as_long_as_is_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * MAX_FILE)
    assert len(resolve("${file:long}", Surroundings({}, tmp_path))[0]) == MAX_FILE


@pytest.mark.parametrize(
    ("name", "variable"),
    [("api-key", "API_KEY"), ("a.b c", "A_B_C"), ("1st", "_1ST"), ("é", "_"), ("", "_")],
)
def test_an_input_has_a_variable(name: str, variable: str) -> None:
    assert variable_of(name) == variable


TEXTS = (
    st.text()
    | st.text(alphabet="${}:-/A file:input:env")
    | st.lists(
        st.sampled_from(
            ["${TOKEN}", "$", "$$", "{", "}", "${", "${NOPE:-", "x", ":-", "${input:a}"]
        )
    ).map("".join)
)


@given(TEXTS, st.booleans())
def test_any_text_gives_text_or_problems(text: str, is_client: bool) -> None:
    value, problems = resolve(text, is_client=is_client)
    assert all("abc" not in problem for problem in problems) or "abc" in text
    if "${" not in text:
        assert problems == []
        assert value == (text if is_client else text.replace("$$", "$"))


@given(TEXTS)
def test_escaped_text_is_itself(text: str) -> None:
    assert resolve(text.replace("$", "$$")) == (text, [])


@given(TEXTS)
def test_the_parts_of_a_clients_text_are_all_of_it(text: str) -> None:
    found = parts(text, is_client=True)
    if not any(isinstance(part, Reference) for part in found):
        assert "".join(str(part) for part in found) == text
