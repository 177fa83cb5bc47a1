"""`trunkline policy test`: compare the policy with a file of expectations."""

import json
from pathlib import Path

from tests.cli.samples import child, config, run

POLICY = """[roles.dev]
permissions = ["tools.execute"]
[[policy]]
deny = "*"
annotations = { destructiveHint = true }
servers = ["small"]
[[policy]]
allow = "file:*"
kinds = ["resource"]
"""


def expectations(folder: Path, text: str) -> str:
    file = folder / "expect.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


GOOD = """[[expect]]
subject = "anna"
roles = ["dev"]
tool = "small__x"
expect = "hidden"
rule = "policy[0]"

[[expect]]
roles = ["dev"]
tool = "small__x"
annotations = { readOnlyHint = true }
args = { path = "/tmp" }
expect = "allow"

[[expect]]
tool = "file:///a"
kind = "resource"
server = "small"
expect = "allow"
"""


def test_a_policy_that_meets_all_expectations_exits_with_zero(tmp_path: Path) -> None:
    file = config(tmp_path, POLICY, child("small"))
    result = run("policy", "test", expectations(tmp_path, GOOD), "--config", file)
    assert result.exit_code == 0, result.output
    assert result.stderr == "3 of 3 as expected\n"
    assert "anna (dev)" in result.stdout


def test_a_failed_expectation_exits_with_one_and_is_marked(tmp_path: Path) -> None:
    wrong = GOOD + '[[expect]]\ntool = "small__x"\nexpect = "deny"\n'
    wrong += '[[expect]]\nroles = ["dev"]\ntool = "small__x"\nexpect = "hidden"\nrule = "role"\n'
    file = config(tmp_path, POLICY, child("small"))
    result = run("policy", "test", expectations(tmp_path, wrong), "--config", file, "--json")
    assert result.exit_code == 1
    assert [outcome["ok"] for outcome in json.loads(result.stdout)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert result.stderr == "3 of 5 as expected\n"
    table = run("policy", "test", expectations(tmp_path, wrong), "--config", file).stdout
    assert table.count("WRONG") == 2


def test_an_invalid_expectations_file_exits_with_two(tmp_path: Path) -> None:
    file = config(tmp_path, POLICY, child("small"))
    result = run("policy", "test", expectations(tmp_path, "[[expect]]\n"), "--config", file)
    assert result.exit_code == 2
    assert "expect.toml:1: expect[0]: " in result.stderr
    huge = '[[expect]]\ntool = "x"\nexpect = "deny"\nargs = { n = 18446744073709551616 }\n'
    result = run("policy", "test", expectations(tmp_path, huge), "--config", file)
    assert result.exit_code == 2
    assert "expect.toml:1: expect.args: expected whole numbers of 64 bits" in result.stderr
