"""`trunkline why`: print the outcome, the rule and its line."""

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
NOT_STARTED = "servers: not started; whether the tool exists was not checked\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    return config(tmp_path, POLICY, child("small"))


def test_why_names_the_rule_that_hides_a_tool(file: str) -> None:
    result = run("why", "small__delete_x", "--as", "anna", "--role", "dev", "--config", file)
    assert (result.exit_code, result.stdout) == (
        0,
        "hidden: anna (dev) cannot see small__delete_x\n"
        f"rule: role dev: denied_tools (some.toml:1)\n{NOT_STARTED}",
    ), result.output


def test_why_shows_the_conditions_on_arguments(file: str) -> None:
    result = run("why", "small__write", "--as", "anna", "--role", "dev", "--config", file)
    assert result.stdout.splitlines()[:3] == [
        "depends on the arguments: anna (dev) can see small__write, and make some calls",
        "rule: policy[0] (some.toml:6) denies if args.path.startsWith('/etc')",
        "else: allow, role dev: tools.execute (some.toml:1)",
    ]


def test_why_shows_the_message_that_the_caller_gets(tmp_path: Path) -> None:
    policy = POLICY + 'message = "Write below /data instead."'
    command = ["why", "small__write", "--as", "a", "--role", "dev"]
    place = config(tmp_path, policy, child("small"))
    result = run(*command, "--args", '{"path": "/etc/x"}', "--config", place)
    assert "message: Write below /data instead.\n" in result.stdout
    assert "message:" not in run(*command, "--args", '{"path": "/"}', "--config", place).stdout


@pytest.mark.parametrize(
    ("role", "args", "outcome", "rule"),
    [
        ("dev", '{"path": "/etc/x"}', "deny", "policy[0] (some.toml:6)"),
        ("dev", '{"path": "/tmp"}', "allow", "role dev: tools.execute (some.toml:1)"),
        ("dev", "{}", "deny", "policy[0] (some.toml:6)"),
        ("viewer", '{"path": "/tmp"}', "deny", "role viewer: tools.read (some.toml:4)"),
        ("other", '{"path": "/tmp"}', "hidden", "no rule allows it"),
    ],
)
def test_why_evaluates_the_given_arguments(
    file: str, role: str, args: str, outcome: str, rule: str
) -> None:
    command = ["why", "small__write", "--as", "a", "--role", role, "--args", args, "--json"]
    result = run(*command, "--config", file)
    report = json.loads(result.stdout)
    assert (report["outcome"], report["rule"], report["server"]) == (outcome, rule, "small")
    assert report["servers_started"] is False
    assert ("its condition failed" in report["note"]) is (args == "{}" and role != "other")


@pytest.mark.parametrize("args", ["[]", "{", '{"a": 1, "a": 2}'])
def test_invalid_arguments_are_refused(file: str, args: str) -> None:
    result = run("why", "small__write", "--as", "a", "--args", args, "--config", file)
    assert result.exit_code == 2
    assert "--args: expected an unambiguous JSON object" in result.stderr


def test_why_starts_the_servers_if_rules_read_annotations(tmp_path: Path) -> None:
    rule = '[[policy]]\nallow = "*"\nannotations = { readOnlyHint = true }\n'
    file = config(tmp_path, rule, OPERATOR)
    result = run("why", "me__status", "--as", "anna", "--config", file)
    assert result.stdout.splitlines() == [
        "allowed: anna may call me__status",
        "rule: policy[0] (some.toml:1)",
        "servers: started; me offers it",
    ], result.output
    unknown = run("why", "me__nothing", "--as", "anna", "--config", file)
    assert unknown.exit_code == 1
    assert "unknown tool: me__nothing" in unknown.stderr
    resource = run("why", "x:1", "--as", "anna", "--kind", "resource", "--config", file)
    assert "unknown resource: x:1" in resource.stderr


def test_without_rules_every_caller_is_allowed(tmp_path: Path) -> None:
    result = run("why", "me__status", "--as", "anna", "--config", config(tmp_path, OPERATOR))
    assert result.stdout.startswith("allowed: anna may call me__status\nrule: there are no rules\n")
