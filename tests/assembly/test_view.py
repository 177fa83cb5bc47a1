"""Who sees what, as the settings have it."""

from typing import Any

import pytest

from trunkline.assembly.view import view_of
from trunkline.config import Config, GatewaySettings, ServerSettings
from trunkline.jsonrpc import Raw
from trunkline.mcp.offer import Kind
from trunkline.routing.catalog import Entry


@pytest.mark.parametrize(
    ("surface", "shown"),
    [
        ("all", {"a__b", "find__find_tools"}),
        ("search", {"find__find_tools"}),
        (("a__*",), {"a__b", "find__find_tools"}),
        (("c",), {"find__find_tools"}),
    ],
)
def test_the_surface_decides_what_is_listed(surface: Any, shown: set[str]) -> None:
    search = ServerSettings(name="find", builtin="search")
    view = view_of(Config(gateway=GatewaySettings(surface=surface), servers=(search,)))
    entries = [
        Entry(Kind.TOOL, "a__b", "a", "b", Raw(b"{}")),
        Entry(Kind.TOOL, "find__find_tools", "find", "find_tools", Raw(b"{}")),
    ]
    assert {entry.public for entry in entries if view.shown(entry)} == shown
