"""Servers that are part of Trunkline, as their settings have them."""

import random

import pytest

from trunkline.assembly.builtin import builtin
from trunkline.config import ServerSettings
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Identity
from trunkline.gateway.switches import Switches
from trunkline.operator.desk import Desk


@pytest.mark.parametrize(
    ("server", "offered"),
    [
        (ServerSettings(name="it", builtin="operator"), "status"),
        (ServerSettings(name="it", builtin="sources"), "get_sources"),
        (ServerSettings(name="it", builtin="search"), "find_tools"),
    ],
)
async def test_every_one_that_can_be_named_offers_its_tools(
    server: ServerSettings, offered: str
) -> None:
    gateway = Gateway(Identity("g", "1"), random.random)
    desk = Desk(gateway, Switches(gateway.layers, gateway.registry))
    backend = builtin(server, desk)
    try:
        assert offered in {offer.key for offer in await backend.offers()}
    finally:
        await backend.aclose()
