"""Conversations beside the first: which calls need one, and what is heard there."""

import asyncio
from typing import Any

import pytest

from tests.gateway.servers import Silent
from trunkline.gateway.backend import Owner
from trunkline.gateway.beside import Beside, begun, needs_lease
from trunkline.gateway.settings import Settings
from trunkline.gateway.upstream import State, Upstream
from trunkline.jsonrpc import Due, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.capabilities import fingerprint
from trunkline.mcp.meta import Params
from trunkline.mcp.offer import Offer
from trunkline.mcp.principal import Principal
from trunkline.routing.call import Call

SAMPLING: dict[str, Any] = {"sampling": {}}
BOTH: dict[str, Any] = {"sampling": {}, "elicitation": {"form": {}}}


class Ear:
    """Writes down what it hears, and is whoever calls."""

    answering = False
    declares = None

    def __init__(self, capabilities: Any = None, version: str = "2026-07-28") -> None:
        self.heard: list[str] = []
        self.caller = Caller(Principal("p"), version, capabilities or {}, Raw(b"{}"))

    @property
    def party(self) -> Any:
        return self

    def offers_changed(self, capability: str) -> None:
        self.heard.append(capability)

    def session_renewed(self) -> None:
        self.heard.append("renewed")

    async def told(self, method: str, params: Any) -> None:
        self.heard.append(method)

    async def asked(self, method: str, params: Any, asker: object = None) -> Raw:
        raise NotImplementedError

    async def ask(self, method: str, params: Any, asker: object = None) -> Raw:
        raise NotImplementedError

    async def tell(self, method: str, params: Any) -> None: ...

    def post(self, method: str, params: Any) -> None: ...

    def call(self, method: str = "tools/call") -> Call:
        return Call(self.caller, 1, method, Params(Raw(b"{}")))


class Told(Silent):
    """A server that answers with what it was told that it may ask."""

    def __init__(self, declared: frozenset[str] | None, tells_calls_apart: bool = True) -> None:
        super().__init__()
        self.declared = declared
        self.tells_calls_apart = tells_calls_apart

    async def offers(self) -> tuple[Offer, ...]:
        return ()

    def call(self, call: Call, client: object) -> Due:
        told = " ".join(sorted(self.declared or ()))
        return Due.settled(to_raw({"content": [], "told": told}))

    async def aclose(self) -> None:
        self.ended.set()


ANYTHING = fingerprint(BOTH)


@pytest.mark.parametrize(
    ("told", "apart", "version", "can", "needed"),
    [
        (None, True, "2026-07-28", BOTH, False),  # it never asks on the way
        (frozenset[str](), False, "2026-07-28", {}, False),  # nothing may be asked
        (frozenset[str](), False, "2025-11-25", SAMPLING, True),
        (ANYTHING, False, "2025-11-25", {}, True),
        (ANYTHING, True, "2026-07-28", SAMPLING, True),
        (frozenset[str](), True, "2026-07-28", SAMPLING, True),
        (ANYTHING, True, "2026-07-28", BOTH, False),  # the first one was told just that
        (ANYTHING, True, "2026-07-28", {}, False),
        (ANYTHING, True, "2025-11-25", SAMPLING, False),
    ],
)
def test_a_call_needs_a_lease_if_its_questions_would_be_wrong_or_somebody_elses(
    told: frozenset[str] | None, apart: bool, version: str, can: Any, needed: bool
) -> None:
    ear = Ear(can, version)
    first = begun(Told(told, apart))
    assert needs_lease(ear.call(), first) is needed
    assert not needs_lease(ear.call("completion/complete"), first)


async def test_what_changes_there_is_heard_and_nobody_is_asked_there() -> None:
    ear = Ear()
    beside = Beside(ear, SAMPLING)
    beside.offers_changed("tools")
    beside.session_renewed()
    await beside.told("notifications/message", None)
    assert ear.heard == ["tools", "notifications/message"]
    with pytest.raises(RpcError, match="not found"):
        await beside.asked("roots/list", None)


@pytest.mark.holds("T31")
async def test_a_server_that_tells_calls_apart_learns_what_each_client_can_be_asked() -> None:
    opened: list[Any] = []
    ready = asyncio.Event()

    async def connect(owner: Owner) -> Told:
        opened.append(owner.declares)
        return Told(fingerprint(BOTH if owner.declares is None else owner.declares))

    def changed(_: frozenset[str]) -> None:
        if upstream.state is State.READY:
            ready.set()

    upstream = Upstream(Settings("s", "s"), connect, changed, Ear(), lambda: 0.0)
    running = asyncio.create_task(upstream.run())
    async with asyncio.timeout(5):
        await ready.wait()
        clients = [Ear(SAMPLING), Ear(SAMPLING), Ear(BOTH), Ear()]
        answers = [await upstream.call(client.call(), client) for client in clients]
    told = [from_raw(answer, dict[str, Any])["told"] for answer in answers]
    both = "elicitation.form sampling"
    assert told == ["sampling", "sampling", both, both]
    assert opened == [None, SAMPLING]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
