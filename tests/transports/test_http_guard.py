"""A guard that asks nobody."""

from tests.transports.exchanges import asked
from trunkline.mcp.principal import LOCAL
from trunkline.transports.http_guard import Guard, Open


async def test_where_nobody_is_asked_everybody_is_the_same() -> None:
    guard: Guard = Open()
    assert guard.recognise(asked()) is LOCAL
    assert await guard.identify(asked(authorization="Bearer x")) is LOCAL
