"""Children that change: upgraded, rolled back, or hanging."""

import asyncio
from pathlib import Path

import pytest

from tests.backends.test_envelope import until
from tests.backends.test_open_child import (
    DISCOVER,
    INITIALIZE,
    MODERN,
    NO,
    SILENT,
    WELCOME,
    Script,
    no_patience,
    running,
)
from tests.jsonrpc.test_channel import stop, tidy
from trunkline.backends.verdicts import Verdicts
from trunkline.mcp.discover import discovery
from trunkline.mcp.handshake import welcome

__all__ = ["no_patience"]


@tidy
@pytest.mark.holds("T108")
async def test_a_child_that_was_upgraded_is_recognized_at_once_and_when_rolled_back(
    tmp_path: Path,
) -> None:
    old, new = Script(initialize=WELCOME), Script(discover=MODERN, initialize=NO)
    for script, era in ((old, "handshake"), (new, "envelope"), (old, "handshake")):
        async with running(script, folder=tmp_path) as place:
            assert await place.era() == era
    assert new.heard == [[INITIALIZE, DISCOVER, "tools/list"]]
    assert [heard[:2] for heard in old.heard] == [[DISCOVER, INITIALIZE]] * 2


@tidy
@pytest.mark.holds("T108")
async def test_a_child_that_learnt_more_is_asked_again_at_its_next_start(tmp_path: Path) -> None:
    newer = {"name": "child", "version": "2"}
    both = Script(
        discover=discovery({"tools": {}}, newer, None),
        initialize=welcome("2025-11-25", {"tools": {}}, newer, None),
    )
    eras: list[str] = []
    for script in (Script(initialize=WELCOME), both, both):
        async with running(script, folder=tmp_path) as place:
            eras.append(await place.era())
    assert eras == ["handshake", "handshake", "envelope"]


@tidy
async def test_a_child_that_hangs_may_not_be_what_it_was() -> None:
    script = Script(initialize=WELCOME)
    async with running(script) as place:
        assert await place.era() == "handshake"
        script.answers |= {INITIALIZE: SILENT, DISCOVER: MODERN}
        opening = asyncio.create_task(place.open())
        await until(script.has_heard(INITIALIZE))
        await stop(opening)
        assert await place.era() == "envelope"


@tidy
@pytest.mark.usefixtures("no_patience")
async def test_a_child_of_the_envelope_era_that_is_silent_now_is_not_kept_for_one(
    tmp_path: Path,
) -> None:
    script = Script(discover=MODERN)
    async with running(script, folder=tmp_path) as place:
        assert await place.era() == "envelope"
    script = Script(discover=SILENT, initialize=WELCOME)
    async with running(script, folder=tmp_path) as place:
        assert await place.era() == "handshake"
    assert await Verdicts(tmp_path).recall("k") is None
