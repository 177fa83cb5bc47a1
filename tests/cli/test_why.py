"""`trunkline why`: the verdict, the rule and its line, with servers and without."""

import json
from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, child, config, run

POLICY = """[roles.dev]
permissions = ["tools.execute"]
denied_tools = ["small__delete_*"]
[roles.viewer]
permissions = ["tools.read"]
[[policy]]
deny = "small__write"
when = "args.path.startsWith('/etc')"
"""
NOT_STARTED = "servers: not started; nobody was asked whether there is such a thing\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    return config(tmp_path, POLICY, child("small"))


def test_what_is_hidden_is_said_with_its_rule(file: str) -> None:
    done = run("why", "small__delete_x", "--as", "anna", "--role", "dev", "--config", file)
    assert (done.exit_code, done.stdout) == (
        0,
        "hidden: to anna (dev) there is no small__delete_x\n"
        f"rule: role dev: denied_tools (some.toml:1)\n{NOT_STARTED}",
    ), done.output


def test_what_depends_on_arguments_is_said_with_its_conditions(file: str) -> None:
    done = run("why", "small__write", "--as", "anna", "--role", "dev", "--config", file)
    assert done.stdout.splitlines()[:3] == [
        "it depends on the arguments: anna (dev) may know of small__write, and call it with some",
        "rule: policy[0] (some.toml:6) denies it when args.path.startsWith('/etc')",
        "else: allow, role dev: tools.execute (some.toml:1)",
    ]


@pytest.mark.parametrize(
    ("role", "args", "verdict", "rule"),
    [
        ("dev", '{"path": "/etc/x"}', "deny", "policy[0] (some.toml:6)"),
        ("dev", '{"path": "/tmp"}', "allow", "role dev: tools.execute (some.toml:1)"),
        ("dev", "{}", "deny", "policy[0] (some.toml:6)"),
        ("viewer", '{"path": "/tmp"}', "deny", "role viewer: tools.read (some.toml:4)"),
        ("other", '{"path": "/tmp"}', "hidden", "no rule allows it"),
    ],
)
def test_arguments_are_judged(file: str, role: str, args: str, verdict: str, rule: str) -> None:
    asked = ["why", "small__write", "--as", "a", "--role", role, "--args", args, "--json"]
    done = run(*asked, "--config", file)
    found = json.loads(done.stdout)
    assert (found["verdict"], found["rule"], found["server"]) == (verdict, rule, "small")
    assert found["servers_started"] is False
    assert ("its condition failed" in found["note"]) is (args == "{}" and role != "other")


@pytest.mark.parametrize("args", ["[]", "{", '{"a": 1, "a": 2}'])
def test_arguments_that_are_none_are_refused(file: str, args: str) -> None:
    done = run("why", "small__write", "--as", "a", "--args", args, "--config", file)
    assert done.exit_code == 2
    assert "--args: expected a JSON object that has one meaning" in done.stderr


def test_servers_are_started_where_only_they_know_what_rules_read(tmp_path: Path) -> None:
    rule = '[[policy]]\nallow = "*"\nannotations = { readOnlyHint = true }\n'
    file = config(tmp_path, rule, OPERATOR)
    done = run("why", "me__status", "--as", "anna", "--config", file)
    assert done.stdout.splitlines() == [
        "allowed: anna may call me__status",
        "rule: policy[0] (some.toml:1)",
        "servers: started; me offers it",
    ], done.output
    unknown = run("why", "me__nothing", "--as", "anna", "--config", file)
    assert unknown.exit_code == 1
    assert "unknown tool: me__nothing" in unknown.stderr
    resource = run("why", "x:1", "--as", "anna", "--kind", "resource", "--config", file)
    assert "unknown resource: x:1" in resource.stderr


def test_without_rules_everybody_may(tmp_path: Path) -> None:
    done = run("why", "me__status", "--as", "anna", "--config", config(tmp_path, OPERATOR))
    assert done.stdout.startswith("allowed: anna may call me__status\nrule: there are no rules\n")
