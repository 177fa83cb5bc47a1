"""Reading and validating the file of `trunkline policy test`."""

from pathlib import Path

import pytest

from trunkline.config import ConfigErrors
from trunkline.config.policy_tables import Expectation, read_expectations


def read(folder: Path, text: str) -> tuple[Expectation, ...]:
    file = folder / "expect.toml"
    file.write_text(text, encoding="utf-8")
    return read_expectations(file)


def test_expectations_are_read_with_their_lines(tmp_path: Path) -> None:
    text = """[[expect]]
tool = "a"
expect = "allow"

[[expect]]
tool = "file:///x"
kind = "resource"
subject = "anna"
roles = ["dev"]
client = "claude"
server = "fs"
annotations = { readOnlyHint = true }
args = { path = "/tmp", more = [1, { deep = true }] }
expect = "hidden"
rule = "policy[0]"
"""
    first, second = read(tmp_path, text)
    assert first == Expectation(tool="a", expect="allow", line=1)
    assert (second.line, second.roles, second.args["path"]) == (5, ("dev",), "/tmp")
    assert second.annotations == {"readOnlyHint": True}


def test_an_empty_file_has_no_expectations(tmp_path: Path) -> None:
    assert read(tmp_path, "") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[expect]]\ntool = "a"', '"expect" is missing'),
        ('[[expect]]\nexpect = "allow"', '"tool" is missing'),
        ('[[expect]]\ntool = "a"\nexpect = "allowed"', 'did you mean "allow"?'),
        ('[[expect]]\ntool = "a"\nexpect = "deny"\nargs = 1', "expected a table"),
        ('[[expect]]\ntool = "a"\nexpect = "deny"\nrole = "x"', 'did you mean "roles"?'),
        ("expect = 1", "expected a list of tables; write [[expect]]"),
        ("expect = [1]", "expected a table, got a whole number"),
        ("[[expected]]", "unknown key; write [[expect]], one for each call"),
        ("[[expect]", "Expected"),
    ],
)
def test_an_invalid_expectation_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        read(tmp_path, text)
    assert why.lower() in str(raised.value).lower()
