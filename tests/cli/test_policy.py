"""`trunkline policy test`: what the policy says, against what is expected of it."""

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


def test_a_policy_that_says_what_is_expected_ends_well(tmp_path: Path) -> None:
    file = config(tmp_path, POLICY, child("small"))
    done = run("policy", "test", expectations(tmp_path, GOOD), "--config", file)
    assert done.exit_code == 0, done.output
    assert done.stderr == "3 of 3 as expected\n"
    assert "anna (dev)" in done.stdout


def test_one_that_does_not_ends_with_one_and_says_where(tmp_path: Path) -> None:
    wrong = GOOD + '[[expect]]\ntool = "small__x"\nexpect = "deny"\n'
    wrong += '[[expect]]\nroles = ["dev"]\ntool = "small__x"\nexpect = "hidden"\nrule = "role"\n'
    file = config(tmp_path, POLICY, child("small"))
    done = run("policy", "test", expectations(tmp_path, wrong), "--config", file, "--json")
    assert done.exit_code == 1
    assert [each["ok"] for each in json.loads(done.stdout)] == [True, True, True, False, False]
    assert done.stderr == "3 of 5 as expected\n"
    table = run("policy", "test", expectations(tmp_path, wrong), "--config", file).stdout
    assert table.count("WRONG") == 2


def test_a_file_that_makes_no_sense_ends_with_two(tmp_path: Path) -> None:
    file = config(tmp_path, POLICY, child("small"))
    done = run("policy", "test", expectations(tmp_path, "[[expect]]\n"), "--config", file)
    assert done.exit_code == 2
    assert "expect.toml:1: expect[0]: " in done.stderr
    huge = '[[expect]]\ntool = "x"\nexpect = "deny"\nargs = { n = 18446744073709551616 }\n'
    done = run("policy", "test", expectations(tmp_path, huge), "--config", file)
    assert done.exit_code == 2
    assert "expect.toml:1: expect.args: expected whole numbers of 64 bits" in done.stderr
