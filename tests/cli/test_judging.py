"""What is known of a tool by its name alone."""

import pytest

from trunkline.cli.judging import name_suffices, owner_of
from trunkline.config import Config, ServerSettings
from trunkline.mcp.offer import Kind
from trunkline.routing.policy import Policy, Rule

FS = ServerSettings(name="fs", command="x")
DB = ServerSettings(name="db", command="x", prefix="data")
BARE = ServerSettings(name="bare", command="x", prefix="")
LIKE = ServerSettings(name="fs__more", command="x")
OFF = ServerSettings(name="off", command="x", disabled=True)


@pytest.mark.parametrize(
    ("servers", "name", "owner"),
    [
        ((FS, DB), "fs__read", "fs"),
        ((FS, DB), "data__get", "db"),
        ((FS, DB), "db__get", None),
        ((FS, LIKE), "fs__more__x", None),
        ((FS, BARE), "fs__read", None),
        ((BARE,), "anything", "bare"),
        ((OFF,), "off__x", None),
    ],
)
def test_the_one_server_that_could_offer_a_name_is_known(
    servers: tuple[ServerSettings, ...], name: str, owner: str | None
) -> None:
    assert owner_of(Config(servers=servers), name) == owner


def test_a_name_suffices_unless_rules_read_what_only_servers_know() -> None:
    plain, backends = Policy([Rule(True, ("*",))]), Policy([Rule(True, ("*",), backends=("fs",))])
    hints = Policy([Rule(True, ("*",), hints=(("readOnlyHint", True),))])
    assert name_suffices(plain, Kind.TOOL, None)
    assert name_suffices(backends, Kind.TOOL, "fs")
    assert not name_suffices(backends, Kind.TOOL, None)
    assert not name_suffices(backends, Kind.RESOURCE, "fs")
    assert not name_suffices(hints, Kind.TOOL, "fs")
