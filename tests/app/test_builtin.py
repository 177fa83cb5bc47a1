"""Building the built-in servers from their settings."""

import random
from typing import Any

import jsonschema
import pytest

from trunkline.admin.service import AdminService
from trunkline.app.build import build_builtin
from trunkline.backends.builtin import BuiltinSettings
from trunkline.gateway.backend import BackendAbilities
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.gateway.session import GatewayIdentity
from trunkline.jsonrpc import from_raw


@pytest.mark.parametrize(
    ("settings", "tool_name"),
    [
        (BuiltinSettings(builtin="operator"), "status"),
        (BuiltinSettings(builtin="sources"), "get_sources"),
        (BuiltinSettings(builtin="search"), "find_tools"),
    ],
)
async def test_every_built_in_server_offers_its_tools_and_needs_no_pings(
    settings: BuiltinSettings, tool_name: str
) -> None:
    gateway = Gateway(GatewayIdentity("g", "1"), random.random)
    admin = AdminService(gateway, KillSwitchControl(gateway.pipeline, gateway.registry))
    backend = build_builtin(settings, admin)
    try:
        assert backend.abilities == BackendAbilities()
        assert tool_name in {feature.key for feature in (await backend.list_features()).features}
    finally:
        await backend.aclose()


@pytest.mark.holds("S1.16")
@pytest.mark.parametrize(
    "settings",
    [
        BuiltinSettings(builtin="operator", operator_tools="all"),
        BuiltinSettings(builtin="sources"),
        BuiltinSettings(builtin="search"),
    ],
)
async def test_every_built_in_tool_has_a_schema_of_its_arguments(settings: BuiltinSettings) -> None:
    gateway = Gateway(GatewayIdentity("g", "1"), random.random)
    admin = AdminService(gateway, KillSwitchControl(gateway.pipeline, gateway.registry))
    backend = build_builtin(settings, admin)
    try:
        features = (await backend.list_features()).features
        assert features
        for feature in features:
            schema = from_raw(feature.definition, dict[str, Any])["inputSchema"]
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
            assert schema["properties"].keys() >= set(schema.get("required", ()))
    finally:
        await backend.aclose()
