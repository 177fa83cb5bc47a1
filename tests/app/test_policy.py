"""Building the policy from the settings; every rule knows its line."""

from pathlib import Path

from trunkline.app.build import build_policy
from trunkline.config import Config, load_config
from trunkline.mcp.features import FeatureKind
from trunkline.routing.conditions import Condition
from trunkline.routing.policy import Role, RoleEntry, Rule

TEXT = """[roles.dev]
permissions = ["tools.execute"]
allowed_tools = ["fs__*"]
denied_tools = [
    "fs__delete_*",
    "*__drop",
]

# A comment above a rule does not count.
[[policy]]
deny = "fs__write_*"
roles = ["dev"]
when = "args.path.startsWith('/etc')"
message = "Write below /data instead."

[[policy]]
allow = ["fs__*", "file:*"]
subjects = ["anna"]
clients = ["claude"]
servers = ["fs"]
kinds = ["tool", "resource"]
annotations = { readOnlyHint = true }

[servers.fs]
command = "x"
"""


def test_every_key_of_the_file_reaches_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text(TEXT, encoding="utf-8")
    policy = build_policy(load_config(file, {}))
    assert policy.roles == {
        "dev": Role(
            frozenset({"tools.execute"}),
            ("fs__delete_*", "*__drop"),
            ("fs__*",),
            {
                RoleEntry("permissions", "tools.execute"): "trunkline.toml:2",
                RoleEntry("allowed_tools", "fs__*"): "trunkline.toml:3",
                RoleEntry("denied_tools", "fs__delete_*"): "trunkline.toml:5",
                RoleEntry("denied_tools", "*__drop"): "trunkline.toml:6",
            },
        )
    }
    assert policy.rules == (
        Rule(
            False,
            ("fs__write_*",),
            "policy[0] (trunkline.toml:10)",
            roles=("dev",),
            condition=Condition("args.path.startsWith('/etc')"),
            message="Write below /data instead.",
        ),
        Rule(
            True,
            ("fs__*", "file:*"),
            "policy[1] (trunkline.toml:16)",
            subjects=("anna",),
            clients=("claude",),
            backends=("fs",),
            kinds=frozenset({FeatureKind.TOOL, FeatureKind.RESOURCE}),
            hints=(("readOnlyHint", True),),
        ),
    )


def test_without_settings_the_policy_allows_every_call() -> None:
    assert build_policy(Config()).is_open
