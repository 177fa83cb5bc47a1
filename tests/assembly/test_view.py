"""What is on the list, as the settings have it."""

import pytest

from trunkline.assembly.view import view_of
from trunkline.config import Config, GatewaySettings, ServerSettings
from trunkline.jsonrpc import Raw
from trunkline.mcp.offer import Kind
from trunkline.routing.catalog import Entry

SEARCH = ServerSettings(name="find", builtin="search")
READ = Entry(Kind.TOOL, "fs__read", "fs", "read", Raw(b"{}"))


@pytest.mark.parametrize(
    ("surface", "shown"),
    [("all", True), ("search", False), (("fs__*",), True), (("db__*",), False)],
)
def test_the_surface_says_what_is_shown(surface: str, shown: bool) -> None:
    settings = GatewaySettings(surface=surface)  # type: ignore[arg-type]
    view = view_of(Config(gateway=settings, servers=(SEARCH,)))
    assert view.shown(READ) is shown
    assert view.searches == {"find"}
