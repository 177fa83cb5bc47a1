"""`trunkline why`: print the outcome, the rule and its line."""

import json
from pathlib import Path
from typing import Any

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
        f"rule: role dev: denied_tools (some.toml:3)\n{NOT_STARTED}",
    ), result.output


def test_why_shows_the_conditions_on_arguments(file: str) -> None:
    result = run("why", "small__write", "--as", "anna", "--role", "dev", "--config", file)
    assert result.stdout.splitlines()[:3] == [
        "depends on the arguments: anna (dev) can see small__write, and make some calls",
        "rule: policy[0] (some.toml:6) denies if args.path.startsWith('/etc')",
        "else: allow, role dev: tools.execute (some.toml:2)",
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
        ("dev", '{"path": "/tmp"}', "allow", "role dev: tools.execute (some.toml:2)"),
        ("dev", "{}", "deny", "policy[0] (some.toml:6)"),
        ("viewer", '{"path": "/tmp"}', "deny", "role viewer: tools.read (some.toml:5)"),
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


AUTH = '[auth]\nmode = ["api_key"]\n'


def test_why_warns_about_an_unknown_role(file: str) -> None:
    result = run("why", "small__write", "--as", "anna", "--role", "dve", "--config", file)
    assert 'note: there is no role "dve" in the configuration; did you mean "dev"?' in result.stderr
    (note,) = json.loads(
        run("why", "small__write", "--as", "a", "--role", "x", "--json", "--config", file).stdout
    )["notes"]
    assert note == 'there is no role "x" in the configuration; roles are dev, viewer'


def test_why_reads_the_roles_of_a_key(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH, POLICY, child("small"))

    def explain(name: str, *more: str) -> Any:
        return run("why", "small__write", "--as", name, *more, "--config", file)

    for key, role, subject in (("ci", "dev", "anna"), ("old", "viewer", "otto")):
        run("key", "add", key, "--role", role, "--subject", subject, "--config", file)
    # By the name of the key, and by its owner.
    for name in ("ci", "anna"):
        assert explain(name).stdout.startswith("depends on the arguments: anna (dev) can see")
    assert "otto (viewer)" in explain("old").stdout
    assert explain("old", "--role", "dev").stdout.startswith("depends on the arguments: old (dev)")
    assert json.loads(explain("anna", "--json").stdout)["roles"] == ["dev"]
    # A name without a key, such as the subject of a token
    unknown = explain("eve")
    assert unknown.stdout.startswith("hidden: eve cannot see")
    assert "note: no valid key is named eve or belongs to eve; --role sets roles" in unknown.stderr
    run("key", "revoke", "old", "--config", file)
    assert "no valid key is named old" in explain("old").stderr


def test_why_asks_which_key_is_meant_if_their_roles_differ(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH, POLICY, child("small"))
    for key, role in (("a", "dev"), ("b", "viewer")):
        run("key", "add", key, "--role", role, "--subject", "anna", "--config", file)
    result = run("why", "small__write", "--as", "anna", "--config", file)
    assert result.exit_code == 2
    assert "the keys of anna have different roles: a (dev), b (viewer); name a key" in result.stderr
    (tmp_path / "keys.json").write_text("nonsense")
    result = run("why", "small__write", "--as", "anna", "--config", file)
    assert (result.exit_code, "note: the roles of anna are not known" in result.stderr) == (0, True)
