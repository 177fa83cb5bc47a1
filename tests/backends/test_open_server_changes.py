"""Servers behind a URL that change: let in at last, replaced, upgraded, rolled back."""

import asyncio
from pathlib import Path

import pytest

from tests.backends.test_envelope import Listener
from tests.backends.test_open_server import HEADERS, Chameleon, at, old
from tests.jsonrpc.test_channel import stop, tidy
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import Hold, Modern, Web, fails, refuses
from trunkline.backends import open_server
from trunkline.backends.open_server import HttpTarget
from trunkline.backends.verdicts import Memory, Verdicts
from trunkline.jsonrpc import ConnectionLost, RpcError

__all__ = ["no_patience_with_links"]


@tidy
@pytest.mark.holds("T108")
async def test_a_server_that_was_replaced_by_one_of_the_other_era_is_recognized_at_once() -> None:
    there = Chameleon(Web(tools=[]))
    async with at(there) as place:
        assert await place.era() == "handshake"
        there.web = modern = Modern(tools=[])
        assert await place.era() == "envelope"
        assert modern.methods == ["initialize", "GET", "server/discover"]
        there.web = web = Web(tools=[])
        assert await place.era() == "handshake"
        assert web.methods[:2] == ["server/discover", "initialize"]


@tidy
@pytest.mark.holds("T108")
@pytest.mark.parametrize("refusal", ["401 Who", "403 No", "429 Later", "500 Oops", "503 Later"])
async def test_a_server_that_is_known_to_shake_hands_and_says_nothing_is_not_taken_for_another(
    refusal: str,
) -> None:
    web = Web(tools=[])
    async with at(web) as place:
        assert await place.era() == "handshake"
        web.asked.clear()
        web.reactions["initialize"] = refuses(refusal)
        assert f"HTTP {refusal[:3]}" in await place.refusal()
    assert web.methods == ["initialize"]


@tidy
async def test_a_server_that_does_neither_says_why_it_does_not_shake_hands() -> None:
    web = old(fails(-32601, "no such method"))
    async with at(web) as place:
        assert await place.era() == "handshake"
        web.reactions["initialize"] = fails(-32603, "out of order")
        assert await place.refusal() == "out of order (-32603)"
    assert web.methods[-2:] == ["initialize", "server/discover"]


@tidy
@pytest.mark.holds("T107")
@pytest.mark.parametrize("web", [Web(tools=[]), Modern(tools=[])])
async def test_the_era_is_decided_once_we_are_let_in(web: Web, tmp_path: Path) -> None:
    """A token that was refused, and is not any more, as after a restart with another one."""
    closed = old(refuses("401 Unauthorized", b"", b"www-authenticate: Bearer"))
    there = Chameleon(closed)
    async with at(there) as place:
        verdicts = Verdicts(tmp_path)
        place.target = HttpTarget(place.url, HEADERS, "auto", Memory(verdicts, "k"))
        assert "HTTP 401" in await place.refusal()
        assert closed.methods == ["server/discover"]
        assert await verdicts.recall("k") is None
        there.web = web
        era = await place.era()
        found = await verdicts.recall("k")
        await verdicts.aclose()
    assert era == ("envelope" if isinstance(web, Modern) else "handshake")
    assert found is not None
    assert found.era == era


@tidy
async def test_what_was_silent_about_its_era_is_asked_again_after_a_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(open_server, "PROBE_PATIENCE", 0.05)
    web = old(Hold())
    async with at(web) as place:
        for _ in range(2):
            verdicts = Verdicts(tmp_path)
            place.target = HttpTarget(place.url, HEADERS, "auto", Memory(verdicts, "k"))
            assert await place.era() == "handshake"
            assert await place.era() == "handshake"
            await verdicts.aclose()
    assert web.methods.count("server/discover") == 2  # once for each gateway


@tidy
@pytest.mark.holds("T108")
async def test_a_server_whose_version_has_changed_is_asked_again() -> None:
    there = Chameleon(old(fails(-32601)))
    async with at(there) as place:
        assert await place.era() == "handshake"
        there.web = newer = old(fails(-32601))
        newer.server = {"name": "web", "version": "9"}
        assert await place.era() == "handshake"
        assert newer.of("server/discover") == []  # it is not bothered: it works as it is
        assert await place.era() == "handshake"
        assert await place.era() == "handshake"
        assert len(newer.of("server/discover")) == 1


@tidy
async def test_a_server_that_hangs_may_not_be_what_it_was() -> None:
    hanging = Web()
    hanging.reactions["initialize"] = hold = Hold()
    there = Chameleon(Web())
    async with at(there) as place:
        assert await place.era() == "handshake"
        there.web = hanging
        opening = asyncio.create_task(place.open())
        await hold.begun.wait()
        await stop(opening)
        there.web = Modern()
        assert await place.era() == "envelope"


@tidy
async def test_a_server_that_is_replaced_while_it_is_used_ends() -> None:
    there = Chameleon(Web())
    async with at(there) as place:
        for web in (Modern(), Web(), Modern()):
            backend = await place.open()
            there.web = web
            listener = Listener()
            with pytest.raises((RpcError, ConnectionLost)):
                await backend.call(listener.call({"name": "t"}), listener)
            await backend.wait_ended()
            await backend.aclose()
