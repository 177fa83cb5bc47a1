"""The whole gateway with HTTP on both sides: what statuses of servers mean to clients."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import (
    FakeSessionServer,
    FakeStatelessServer,
    InSequence,
    fails,
    rejects,
    server_request,
    streams,
)
from tests.gateway.servers import make_gateway, tool
from tests.gateway.stateless_callers import StatelessCaller
from tests.gateway.test_suspended_calls import FORM, INPUT_META
from tests.http.scripted_server import scripted_server
from tests.http_client import GatewaySite, rpc_request, site
from tests.tasks import settle, tidy
from trunkline.backends.connect import ClientIdentity, HttpConnector
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.settings import SuspendedCallLimits, UpstreamSettings
from trunkline.gateway.suspended_calls import SuspendedCall

OURS = b"Bearer ours"


@asynccontextmanager
async def before(web: FakeSessionServer) -> AsyncGenerator[GatewaySite]:
    """Run a gateway in front of an HTTP server."""
    made = make_gateway()
    async with scripted_server(web.play) as server:
        headers = [(b"authorization", OURS)]
        target = HttpConnector(server.url, headers, "auto", limits=SHORT_LIMITS)

        async def connect(listener: BackendListener) -> Backend:
            return await target.connect(ClientIdentity("s", made.remapper, listener, {}, {}))

        made.add_upstream(UpstreamSettings("s", "s", timeout=60.0, start_timeout=60.0), connect)
        async with site(made) as here:
            yield here
            await made.registry.aclose()
            await settle()  # close the server's ends of the connections


@tidy
@pytest.mark.holds("T97")
async def test_a_404_of_a_server_fails_one_call_and_ends_no_session() -> None:
    web = FakeStatelessServer(tools=[tool("t")])
    web.reactions["tools/call"] = InSequence(fails(-32601, status="404 Not Found"), web.react)
    async with before(web) as here:
        client = await here.session_client()
        reply = await client.ask("tools/call", name="s__t")
        assert (reply.status, (await reply.final_message())["error"]["code"]) == (200, -32601)
        # The gateway detects the protocol of the server again; the call and the session go on.
        await web.wait_for("server/discover")
        await web.wait_for("server/discover")
        for _ in range(3):
            reply = await client.ask("tools/call", name="s__t")
            assert "result" in await reply.final_message()
    assert len(web.received_for("server/discover")) == 2


@tidy
@pytest.mark.holds("T103")
@pytest.mark.parametrize(
    "web", [FakeSessionServer(tools=[tool("t")]), FakeStatelessServer(tools=[tool("t")])]
)
async def test_credentials_and_challenges_are_not_passed_between_client_and_server(
    web: FakeSessionServer,
) -> None:
    challenge = b'www-authenticate: Bearer realm="inside"'
    web.reactions["tools/call"] = rejects("401 Unauthorized", b"", challenge)
    async with before(web) as here:
        for client in (await here.session_client(), here.stateless_client()):
            reply = await client.ask("tools/call", name="s__t")
            assert reply.status != 401
            assert "www-authenticate" not in reply.headers
            assert "inside" not in str(await reply.final_message())
        old = await here.session_client()
        foreign: dict[str, Any] = {**old.headers, "authorization": "Bearer theirs"}
        await here.ask(rpc_request(9, "tools/call", name="s__t"), **foreign)
    given = {asked.header("authorization") for asked in web.received}
    assert given == {OURS.decode()}


def suspended_calls() -> set[SuspendedCall]:
    """Return all suspended calls that are still referenced."""
    gc.collect()
    return {each for each in gc.get_objects() if isinstance(each, SuspendedCall)}


@tidy
async def test_a_suspended_call_expires_without_its_client() -> None:
    web = FakeSessionServer(tools=[tool("t")])
    web.reactions["tools/call"] = streams(server_request(7, "elicitation/create", FORM), end=False)
    async with before(web) as here:
        calls = here.gateway.stateless.suspended_calls
        calls.limits = SuspendedCallLimits(input_timeout=0.01)
        earlier = suspended_calls()
        asked = await StatelessCaller(here.gateway).call("s__t", _meta=INPUT_META)
        assert asked["resultType"] == "input_required"
        while len(calls):
            await asyncio.sleep(0)
        await web.wait_for("notifications/cancelled")
        await settle()
        assert suspended_calls() <= earlier
