"""Building the visibility policy from the settings."""

from typing import Any

import pytest

from trunkline.app.build import build_visibility
from trunkline.backends.builtin import BuiltinSettings
from trunkline.config import Config, GatewaySettings, ServerSettings
from trunkline.jsonrpc import Raw
from trunkline.mcp.features import FeatureKind
from trunkline.routing.catalog import CatalogEntry


@pytest.mark.parametrize(
    ("surface", "shown"),
    [
        ("all", {"a__b", "find__find_tools"}),
        ("search", {"find__find_tools"}),
        (("a__*",), {"a__b", "find__find_tools"}),
        (("c",), {"find__find_tools"}),
    ],
)
def test_the_surface_setting_selects_the_listed_tools(surface: Any, shown: set[str]) -> None:
    search = ServerSettings(name="find", backend=BuiltinSettings(builtin="search"))
    visibility = build_visibility(
        Config(gateway=GatewaySettings(surface=surface), servers=(search,))
    )
    entries = [
        CatalogEntry(FeatureKind.TOOL, "a__b", "a", "b", Raw(b"{}")),
        CatalogEntry(FeatureKind.TOOL, "find__find_tools", "find", "find_tools", Raw(b"{}")),
    ]
    assert {entry.public_name for entry in entries if visibility.is_listed(entry)} == shown
