"""Loading and validating `[roles]` and `[[policy]]`, with their lines."""

from pathlib import Path

import pytest

from trunkline.config import Config, ConfigErrors, load_config
from trunkline.config.policy_tables import PolicySettings, RoleSettings, RuleSettings

SERVERS = '[servers.fs]\ncommand = "x"\n[servers.tracker]\ncommand = "y"\n'


def load(folder: Path, text: str) -> Config:
    file = folder / "trunkline.toml"
    file.write_text(f"{text}\n{SERVERS}", encoding="utf-8")
    return load_config(file, {"HOME": str(folder)})


def errors_of(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        load(folder, text)
    file = folder / "trunkline.toml"
    return [str(error).removeprefix(f"{file}:") for error in raised.value.errors]


def test_without_the_tables_there_is_no_policy(tmp_path: Path) -> None:
    assert Config().policy == PolicySettings()
    assert load(tmp_path, "").policy == PolicySettings()


def test_every_key_of_the_tables_is_loaded(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        """[roles.dev]
permissions = ["tools.execute", "prompts.read"]
allowed_tools = ["fs__*"]
denied_tools = ["fs__delete_*"]

[roles."a role"]

[[policy]]
deny = "fs__write_*"
roles = ["dev"]
when = "args.path.startsWith('/etc')"
message = "Write below /data instead."

[[policy]]
allow = ["fs__*", "file:///docs/*"]
subjects = ["anna", "*@example.org"]
clients = ["claude-*"]
servers = ["fs"]
kinds = ["tool", "resource"]
annotations = { readOnlyHint = true, destructiveHint = false }
""",
    ).policy
    assert found.roles == (
        RoleSettings(
            name="dev",
            permissions=("tools.execute", "prompts.read"),
            allowed_tools=("fs__*",),
            denied_tools=("fs__delete_*",),
        ),
        RoleSettings(name="a role"),
    )
    first, second = found.rules
    assert first == RuleSettings(
        deny="fs__write_*",
        roles=("dev",),
        when="args.path.startsWith('/etc')",
        message="Write below /data instead.",
    )
    assert first.patterns == ("fs__write_*",)
    assert first.required_annotations == ()
    assert second.patterns == ("fs__*", "file:///docs/*")
    assert second.required_annotations == (("readOnlyHint", True), ("destructiveHint", False))
    assert (second.kinds, second.servers) == (("tool", "resource"), ("fs",))
    assert found.lines == {
        ("policy", 0): 8,
        ("policy", 1): 14,
        ("roles", "dev", "permissions", 0): 2,
        ("roles", "dev", "permissions", 1): 2,
        ("roles", "dev", "allowed_tools", 0): 3,
        ("roles", "dev", "denied_tools", 0): 4,
    }


RULE = '[[policy]]\nallow = "*"\n'
WRONG = [
    ('[roles.dev]\npermissions = ["tools.exec"]', 'did you mean "tools.execute"?'),
    ('[roles.dev]\npermissions = "*"', "expected a list, got text"),
    ('[roles.dev]\ndenied = ["x"]', "unknown key"),
    ('[roles.dev]\ndenied_tools = [""]', "expected the name of a tool"),
    ('roles = ["dev"]', "expected a table, got a list"),
    ('[roles." "]', "expected the name of a role"),
    ('[policy]\nallow = "*"', "expected a list of tables; write [[policy]], in double brackets"),
    ("policy = 1", "expected a list"),
    ("[[policy]]", "expected either allow or deny: it has neither"),
    (f'{RULE}deny = "x"', "expected either allow or deny: it has both"),
    ("[[policy]]\nallow = []", "expected at least 1, got 0"),
    ("[[policy]]\nallow = [1]", "expected text, got a whole number"),
    ("[[policy]]\nallow = 1", "expected text, got a whole number"),
    ('[[policy]]\nallow = "a b"', "expected the name of a tool"),
    (f"{RULE}roles = []", "expected at least 1, got 0"),
    (f'{RULE}roles = "dev"', "expected a list, got text"),
    (f'{RULE}servers = ["trackr"]', 'there is no server "trackr"; did you mean "tracker"?'),
    (f'{RULE}servers = ["zzz"]', 'there is no server "zzz"; name one of [servers.NAME]'),
    (f'{RULE}servers = [""]', "expected 1 to 40 letters"),
    (f'{RULE}roles = [""]', "expected the name of a role"),
    (f'{RULE}clients = [""]', "expected a name of up to 128 characters, with * and ?"),
    (f'{RULE}subjects = [" x"]', "expected a name of up to 128 characters, with * and ?"),
    (f'{RULE}kinds = ["tools"]', 'did you mean "tool"?'),
    (f"{RULE}annotations = {{ readOnly = true }}", 'did you mean "readOnlyHint"?'),
    (f'{RULE}annotations = {{ readOnlyHint = "yes" }}', "expected true or false"),
    (
        f'{RULE}kinds = ["prompt"]\nannotations = {{ readOnlyHint = true }}',
        "only tools have annotations",
    ),
    (f'{RULE}when = ""', "expected a condition"),
    (f'{RULE}when = "{"a" * 2001}"', "expected a condition of up to 2000 characters"),
    (f'{RULE}tool = "x"', "unknown key"),
    (f'{RULE}message = "no"', "the rule allows; leave it out, or write deny"),
    ('[[policy]]\ndeny = "*"\nmessage = " "', "expected a sentence of up to 500 characters"),
    ('[[policy]]\ndeny = "*"\nmessage = "a\\nb"', "expected a sentence of up to 500 characters"),
]


@pytest.mark.parametrize(("text", "why"), WRONG)
def test_an_invalid_role_or_rule_is_refused_with_the_reason(
    tmp_path: Path, text: str, why: str
) -> None:
    (error,) = errors_of(tmp_path, text)
    assert why in error


def test_an_invalid_condition_is_refused_with_line_and_column(tmp_path: Path) -> None:
    rule = f"{RULE}when = "
    assert errors_of(tmp_path, f"{rule}\"args.path.startsWith('/etc'\"") == [
        "3: policy[0].when: missing ')' at the end, in line 1, column 28 of the condition; "
        "see the reference for conditions"
    ]
    (error,) = errors_of(tmp_path, f"{rule}'''true\n  && arg.path == 1'''")
    assert "undeclared reference to 'arg.path', in line 2, column 9 of the condition" in error


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    text = f"{RULE}when = 'x'\n\n[[policy]]\n\n[http]\npath = 1"
    assert [error.partition(":")[0] for error in errors_of(tmp_path, text)] == ["3", "5", "8"]


def test_a_type_error_in_one_rule_does_not_hide_errors_in_others(tmp_path: Path) -> None:
    found = errors_of(tmp_path, '[roles.""]\n[[policy]]\nalow = "*"\n[[policy]]\nroles = ["dev"]')
    assert [error.split(": ")[1] for error in found] == ['roles.""', "policy[0].alow", "policy[1]"]


def test_a_mistake_in_one_key_of_a_rule_hides_none_in_another(tmp_path: Path) -> None:
    found = errors_of(
        tmp_path,
        """[[policy]]
servers = ["nope", 5, "a b"]
kinds = ["tols"]
when = "1 +"
message = 5
[roles.dev]
permissions = ["tools.exec"]
denied_tools = ["a b"]
[limits.roles]
dve = 5
dev = { rpm = 0, x = 1 }""",
    )
    assert [error.split(": ")[:2] for error in found] == [
        ["1", "policy[0]"],
        ["2", "policy[0].servers[1]"],
        ["2", "policy[0].servers[2]"],
        ["2", "policy[0].servers[0]"],
        ["3", "policy[0].kinds[0]"],
        ["4", "policy[0].when"],
        ["5", "policy[0].message"],
        ["7", "roles.dev.permissions[0]"],
        ["8", "roles.dev.denied_tools[0]"],
        ["11", "limits.roles.dev.rpm"],
        ["11", "limits.roles.dev.x"],
    ]


def test_notes_come_with_the_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as raised:
        load(tmp_path, f'{RULE}roles = ["dve"]\n[roles.dev]\npermissions = 1')
    (note,) = raised.value.notes
    assert 'policy[0].roles[0]: there is no [roles."dve"]' in note


def test_an_undefined_role_is_noted_if_any_role_is_defined(tmp_path: Path) -> None:
    rule = f'{RULE}roles = ["dve", "dev"]'
    (note,) = load(tmp_path, f"{rule}\n[roles.dev]").notes
    assert 'there is no [roles."dve"]; did you mean "dev"?' in note
    (note,) = load(tmp_path, "[limits.roles]\nguests = 5\ndev = 5\n[roles.dev]").notes
    assert '2: limits.roles.guests: there is no [roles."guests"]; check its spelling' in note
    assert load(tmp_path, rule).notes == ()
