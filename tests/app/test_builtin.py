"""Building the built-in servers from their settings."""

import random

import pytest

from trunkline.admin.service import AdminService
from trunkline.app.build import build_builtin
from trunkline.config import ServerSettings
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.gateway.session import GatewayIdentity


@pytest.mark.parametrize(
    ("server", "tool_name"),
    [
        (ServerSettings(name="it", builtin="operator"), "status"),
        (ServerSettings(name="it", builtin="sources"), "get_sources"),
        (ServerSettings(name="it", builtin="search"), "find_tools"),
    ],
)
async def test_every_built_in_server_offers_its_tools(
    server: ServerSettings, tool_name: str
) -> None:
    gateway = Gateway(GatewayIdentity("g", "1"), random.random)
    admin = AdminService(gateway, KillSwitchControl(gateway.pipeline, gateway.registry))
    backend = build_builtin(server, admin)
    try:
        assert tool_name in {feature.key for feature in (await backend.list_features()).features}
    finally:
        await backend.aclose()
