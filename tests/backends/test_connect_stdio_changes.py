"""Child processes that are upgraded, rolled back, or hang."""

import asyncio
from pathlib import Path

import pytest

from tests.backends.test_connect_stdio import (
    DISCOVER,
    INITIALIZE,
    MODERN,
    NO,
    SHORT_TIMEOUTS,
    SILENT,
    WELCOME,
    Script,
    running,
)
from tests.backends.test_stateless_server import until
from tests.tasks import stop, tidy
from trunkline.backends.era_cache import EraFile
from trunkline.mcp.negotiation import discover_result, initialize_result
from trunkline.mcp.versions import V2025_11_25


@tidy
@pytest.mark.holds("T108")
async def test_an_upgraded_or_rolled_back_child_is_detected_at_once(
    tmp_path: Path,
) -> None:
    old, new = Script(initialize=WELCOME), Script(discover=MODERN, initialize=NO)
    for script, era in ((old, "session"), (new, "stateless"), (old, "session")):
        async with running(script, folder=tmp_path) as place:
            assert await place.era() == era
    assert new.methods == [[INITIALIZE, DISCOVER, "tools/list"]]
    assert [methods[:2] for methods in old.methods] == [[DISCOVER, INITIALIZE]] * 2


@tidy
@pytest.mark.holds("T108")
async def test_an_upgraded_child_is_probed_again_at_its_next_start(tmp_path: Path) -> None:
    newer = {"name": "child", "version": "2"}
    both = Script(
        discover=discover_result({"tools": {}}, newer, None),
        initialize=initialize_result(V2025_11_25, {"tools": {}}, newer, None),
    )
    eras: list[str] = []
    for script in (Script(initialize=WELCOME), both, both):
        async with running(script, folder=tmp_path) as place:
            eras.append(await place.era())
    assert eras == ["session", "session", "stateless"]


@tidy
async def test_a_cancelled_connection_attempt_invalidates_the_cache() -> None:
    script = Script(initialize=WELCOME)
    async with running(script) as place:
        assert await place.era() == "session"
        script.answers |= {INITIALIZE: SILENT, DISCOVER: MODERN}
        opening = asyncio.create_task(place.open())
        await until(script.has_received(INITIALIZE))
        await stop(opening)
        assert await place.era() == "stateless"


@tidy
async def test_a_child_remembered_as_stateless_that_is_silent_now_is_forgotten(
    tmp_path: Path,
) -> None:
    script = Script(discover=MODERN)
    async with running(script, folder=tmp_path) as place:
        assert await place.era() == "stateless"
    script = Script(discover=SILENT, initialize=WELCOME)
    async with running(script, folder=tmp_path, timeouts=SHORT_TIMEOUTS) as place:
        assert await place.era() == "session"
    assert await EraFile(tmp_path).get("k") is None
