"""What `trunkline why` can decide from a tool name alone."""

import pytest

from trunkline.backends.command import CommandSettings
from trunkline.cli.policy import is_decidable_by_name, server_for_name
from trunkline.config import Config, ServerSettings
from trunkline.mcp.features import FeatureKind
from trunkline.routing.policy import Policy, Rule

FS = ServerSettings(name="fs", backend=CommandSettings(command="x"))
DB = ServerSettings(name="db", backend=CommandSettings(command="x"), prefix="data")
BARE = ServerSettings(name="bare", backend=CommandSettings(command="x"), prefix="")
SIMILAR = ServerSettings(name="fs__more", backend=CommandSettings(command="x"))
OFF = ServerSettings(name="off", backend=CommandSettings(command="x"), disabled=True)


@pytest.mark.parametrize(
    ("servers", "name", "owner"),
    [
        ((FS, DB), "fs__read", "fs"),
        ((FS, DB), "data__get", "db"),
        ((FS, DB), "db__get", None),
        ((FS, SIMILAR), "fs__more__x", None),
        ((FS, BARE), "fs__read", None),
        ((BARE,), "anything", "bare"),
        ((OFF,), "off__x", None),
    ],
)
def test_a_tool_name_identifies_its_server_if_only_one_matches(
    servers: tuple[ServerSettings, ...], name: str, owner: str | None
) -> None:
    assert server_for_name(Config(servers=servers), name) == owner


def test_a_name_is_enough_unless_rules_read_servers_or_annotations() -> None:
    plain, backends = Policy([Rule(True, ("*",))]), Policy([Rule(True, ("*",), backends=("fs",))])
    hints = Policy([Rule(True, ("*",), hints=(("readOnlyHint", True),))])
    assert is_decidable_by_name(plain, FeatureKind.TOOL, None)
    assert is_decidable_by_name(backends, FeatureKind.TOOL, "fs")
    assert not is_decidable_by_name(backends, FeatureKind.TOOL, None)
    assert not is_decidable_by_name(backends, FeatureKind.RESOURCE, "fs")
    assert not is_decidable_by_name(hints, FeatureKind.TOOL, "fs")
