"""The whole gateway, with HTTP in front and behind: what a server's statuses mean to clients."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.conftest import no_patience
from tests.gateway.letters import Poster
from tests.gateway.servers import gateway, tool
from tests.gateway.test_parking import ASKABLE, FORM
from tests.http_client import Site, call, site
from tests.jsonrpc.test_channel import settle, tidy
from tests.transports.faulty import faulty
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import InTurn, Modern, Web, fails, question, refuses, streams
from trunkline.backends.open_server import HttpTarget, Introduction
from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.parking import Exchange, Limits
from trunkline.gateway.settings import Settings

__all__ = ["no_patience", "no_patience_with_links"]

OURS = b"Bearer ours"


@asynccontextmanager
async def before(web: Web) -> AsyncGenerator[Site]:
    """Put a gateway before a server behind a URL."""
    made = gateway()
    async with faulty(web.play) as server:
        target = HttpTarget(server.url, [(b"authorization", OURS)], "auto")

        async def connect(listener: Listener) -> Backend:
            return await target.open(Introduction("s", made.remapper, listener, {}, {}))

        made.add(Settings("s", "s", timeout=5.0, start_timeout=5.0), connect)
        async with site(made) as here:
            yield here
            await made.registry.aclose()
            await settle()  # the server's own ends of it are the test's


@tidy
@pytest.mark.holds("T97")
async def test_a_404_of_a_servers_is_an_error_of_one_call_and_ends_no_session() -> None:
    web = Modern(tools=[tool("t")])
    web.reactions["tools/call"] = InTurn(fails(-32601, status="404 Not Found"), web.react)
    async with before(web) as here:
        client = await here.old()
        reply = await client.ask("tools/call", name="s__t")
        assert (reply.status, (await reply.last())["error"]["code"]) == (200, -32601)
        # The server may have become another, and is asked what it is; it goes on, and the session.
        await web.until("server/discover")
        await web.until("server/discover")
        for _ in range(3):
            reply = await client.ask("tools/call", name="s__t")
            assert "result" in await reply.last()
    assert len(web.of("server/discover")) == 2


@tidy
@pytest.mark.holds("T103")
@pytest.mark.parametrize("web", [Web(tools=[tool("t")]), Modern(tools=[tool("t")])])
async def test_what_a_server_wants_to_know_of_us_is_not_for_clients_nor_theirs_for_it(
    web: Web,
) -> None:
    challenge = b'www-authenticate: Bearer realm="inside"'
    web.reactions["tools/call"] = refuses("401 Unauthorized", b"", challenge)
    async with before(web) as here:
        for client in (await here.old(), here.new()):
            reply = await client.ask("tools/call", name="s__t")
            assert reply.status != 401
            assert "www-authenticate" not in reply.headers
            assert "inside" not in str(await reply.last())
        old = await here.old()
        theirs: dict[str, Any] = {**old.headers, "authorization": "Bearer theirs"}
        await here.ask(call(9, "tools/call", name="s__t"), **theirs)
    given = {asked.header("authorization") for asked in web.asked}
    assert given == {OURS.decode()}


def exchanges() -> set[Exchange]:
    """Return all that are held by anybody."""
    gc.collect()
    return {each for each in gc.get_objects() if isinstance(each, Exchange)}


@tidy
async def test_nothing_is_held_for_a_call_whose_client_never_came_back() -> None:
    web = Web(tools=[tool("t")])
    web.reactions["tools/call"] = streams(question(7, "elicitation/create", FORM), end=False)
    async with before(web) as here:
        parking = here.gateway.stateless.parking
        parking.limits = Limits(ttl=0.01)
        others = exchanges()
        asked = await Poster(here.gateway).call("s__t", _meta=ASKABLE)
        assert asked["resultType"] == "input_required"
        while len(parking):
            await asyncio.sleep(0)
        await web.until("notifications/cancelled")
        await settle()
        assert exchanges() <= others
