"""References such as ${VAR}: their values, and the errors of broken ones."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.config.references import (
    MAX_REFERENCED_FILE_BYTES,
    Reference,
    ResolveContext,
    parse_references,
    resolve_references,
    variable_name,
)

ENVIRON = {"TOKEN": "abc", "EMPTY": "", "HOME": "/home/me", "API_KEY": "k", "NESTED": "${TOKEN}"}
HERE = Path("/etc/trunkline")


def resolve(
    text: str, context: ResolveContext | None = None, is_client: bool = False
) -> tuple[str, list[str]]:
    problems: list[str] = []
    context = context or ResolveContext(ENVIRON, HERE, {}, is_client)
    return resolve_references(
        text, context, lambda why, fix: problems.append(f"{why}; {fix}")
    ), problems


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
def test_a_reference_is_replaced_by_its_value(text: str, expected: str) -> None:
    assert resolve(text) == (expected, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NOPE}", "the variable NOPE is not set; set it, or write ${NOPE:-default}"),
        ("${env:NOPE}", "the variable NOPE is not set; set it, or write ${NOPE:-default}"),
        ("${input:my.id}", 'the input "my.id" has no value; set the variable MY_ID'),
        ("${command:x}", "only another program can resolve ${command:…}; write ${VAR}"),
        ("${cmd: op read x}", "only another program can resolve ${cmd:…}; write ${VAR}"),
    ],
)
@pytest.mark.parametrize("is_client", [False, True])
def test_a_reference_without_a_value_is_reported_with_a_remedy(
    text: str, problem: str, is_client: bool
) -> None:
    assert resolve(text, is_client=is_client)[1] == [problem]


@pytest.mark.parametrize("text", ["${", "${}", "${A${B}}", "${1}", "${a b}", "${file:}", "${A:B}"])
def test_an_invalid_reference_is_refused_except_in_client_files(text: str) -> None:
    _, problems = resolve(text, ResolveContext({"A": "", "B": ""}, HERE))
    assert problems[0] == (
        "expected ${VAR}, ${VAR:-default} or ${file:path}; write $${ for a literal ${"
    )
    client_context = ResolveContext({"A": "", "B": "${B}"}, HERE, is_client=True)
    assert resolve(text, client_context) == (text, [])


def test_client_files_have_no_escapes() -> None:
    assert resolve("pa$$word", is_client=True) == ("pa$$word", [])
    assert resolve("$${TOKEN}", is_client=True) == ("$$" + "{TOKEN}", [])


def test_every_error_in_a_string_is_reported() -> None:
    assert len(resolve("${A} ${B} ${TOKEN} ${")[1]) == 3


def test_an_input_uses_its_variable_or_its_default() -> None:
    context = ResolveContext(
        {"SET": "s", "BLANK": ""}, HERE, {"set": "d", "a b": "d", "blank": "d"}
    )
    assert resolve("${input:set} ${input:a b} ${input:blank}", context) == ("s d d", [])
    context = ResolveContext({}, HERE, {"key": None})
    assert resolve("${input:key}", context)[1]


def test_an_unknown_home_folder_is_an_error() -> None:
    assert resolve("${userHome}", ResolveContext({}, HERE)) == (
        "",
        ["${userHome} is not known here; set the variable HOME"],
    )
    assert resolve("${userHome}", ResolveContext({"USERPROFILE": "C:"}, HERE)) == ("C:", [])


@pytest.mark.parametrize("folder", [".vscode", ".cursor"])
def test_the_workspace_folder_contains_the_settings_folder(folder: str) -> None:
    context = ResolveContext({}, Path("/project") / folder)
    assert resolve("${workspaceFolder} ${workspaceFolderBasename}", context) == (
        "/project project",
        [],
    )


def test_a_file_reference_starts_at_the_configuration_file_and_is_stripped(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xef\xbb\xbf abc\r\n\n")
    context = ResolveContext({"HOME": str(tmp_path)}, tmp_path)
    for name in ("token", "./token", "~/token", str(tmp_path / "token")):
        assert resolve(f"<${{file:{name}}}>", context) == ("<abc>", [])


def test_an_unusable_file_is_reported_without_its_content(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * (MAX_REFERENCED_FILE_BYTES + 1))
    (tmp_path / "odd").write_bytes(b"secret\xff")
    (tmp_path / "nul").write_bytes(b"secret\0")
    context = ResolveContext({}, tmp_path)
    expected = {
        "nope": 'the file "nope" cannot be read: no such file or directory; check its name',
        "": "expected ${VAR}",
        ".": 'the file "." cannot be read: is a directory',
        "long": 'the file "long" is longer than 65536 bytes; name a smaller one',
        "odd": 'the file "odd" is not UTF-8; save it as UTF-8',
        "nul": 'the file "nul" is not text; name another',
        "a\0b": 'the file "a\\u0000b" cannot be read: not a file name',
    }
    for name, start in expected.items():
        value, (problem,) = resolve(f"${{file:{name}}}", context)
        assert value == ""
        assert problem.startswith(start)


def test_a_file_of_the_maximum_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * MAX_REFERENCED_FILE_BYTES)
    assert (
        len(resolve("${file:long}", ResolveContext({}, tmp_path))[0]) == MAX_REFERENCED_FILE_BYTES
    )


@pytest.mark.parametrize(
    ("name", "variable"),
    [("api-key", "API_KEY"), ("a.b c", "A_B_C"), ("1st", "_1ST"), ("é", "_"), ("", "_")],
)
def test_an_input_name_becomes_a_variable_name(name: str, variable: str) -> None:
    assert variable_name(name) == variable


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
def test_any_text_resolves_to_text_or_errors(text: str, is_client: bool) -> None:
    value, problems = resolve(text, is_client=is_client)
    assert all("abc" not in problem for problem in problems) or "abc" in text
    if "${" not in text:
        assert problems == []
        assert value == (text if is_client else text.replace("$$", "$"))


@given(TEXTS)
def test_escaped_text_resolves_to_itself(text: str) -> None:
    assert resolve(text.replace("$", "$$")) == (text, [])


@given(TEXTS)
def test_the_parts_of_a_client_text_add_up_to_the_text(text: str) -> None:
    found = parse_references(text, is_client=True)
    if not any(isinstance(part, Reference) for part in found):
        assert "".join(str(part) for part in found) == text
