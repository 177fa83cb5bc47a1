"""What every call passes through: judged before it reaches anybody, and ended once."""

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tests.gateway.letters import poster
from tests.gateway.servers import Hold, Server, gateway, running, text_of, tool, user
from tests.gateway.test_passage import ENTRY
from tests.gateway.test_passage import passage as passing
from trunkline.gateway.events import MANY, CallEnded, Event, Events
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.layers import Layers
from trunkline.gateway.passage import Passage
from trunkline.gateway.route import Check, Route
from trunkline.jsonrpc import Due, Raw, Request, RpcError
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.principal import Principal
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing.catalog import Entry


class Judge:
    """A governor that does what the test says."""

    def __init__(self) -> None:
        self.judged: list[str] = []
        self.instead: Raw | None = None
        self.why: RpcError | None = None
        self.given_back = 0

    def sees(self, caller: Caller, entry: Entry) -> bool:
        return True

    def checks(self, entry: Entry) -> tuple[Check, ...]:
        return (self._judge,)

    def _judge(self, passage: Passage, entry: Entry) -> Raw | None:
        self.judged.append(entry.public)
        passage.leaving += (self._give_back,)
        if self.why is not None:
            raise self.why
        return self.instead

    def readmit(self, caller: Caller, entry: Entry) -> None:
        self.judged.append(f"again: {entry.public}")
        if self.why is not None:
            raise self.why

    def check_stopped(self, caller: Caller, entry: Entry) -> None:
        """Stop nothing."""

    def hidden_by(self, caller: Caller, entry: Entry) -> str | None:
        return None

    def passes_unknown(self, caller: Caller, backend: str) -> bool:
        return False

    def hears(self, caller: Caller | None, backend: str) -> bool:
        return True

    def _give_back(self) -> None:
        self.given_back += 1


def watched(made: Gateway) -> list[CallEnded]:
    ends: list[CallEnded] = []

    def note(event: Event) -> None:
        if isinstance(event, CallEnded):
            ends.append(event)

    made.layers.events.listen(note)
    return ends


def send(layers: Layers, passage: Passage, answer: Due) -> None:
    """Have a call carried out by somebody."""
    upstream = Mock(revision=None, call=Mock(return_value=answer))
    client = Mock(caller=passage.caller)
    layers.carry(passage, Route(ENTRY, upstream), Params(Raw(b"{}")), client)


def offering() -> Server:
    return Server(tools=[tool("n")], prompts=[{"name": "p"}])


async def test_nothing_is_noted_for_nobody() -> None:
    server = offering()
    made = gateway(a=server)
    async with running(made, server):
        client = await poster(made)
        await client.call("a__n")
        assert made.layers.under_way == {}


async def test_every_call_ends_once_in_front_of_those_who_listen() -> None:
    server = offering()
    made = gateway(a=server)
    ends = watched(made)
    async with running(made, server):
        client = await poster(made)
        await client.call("a__n")
        await client.ask("prompts/get", name="a__p")
        await client.refusal("tools/call", name="none")
        await client.ask("tools/list")
    assert [(end.method, end.name, end.backend, end.status) for end in ends] == [
        ("tools/call", "a__n", "a", "success"),
        ("prompts/get", "a__p", "a", "success"),
        ("tools/call", "none", None, "unknown"),
    ]
    assert len({end.id for end in ends}) == 3
    assert ends[0].backend_revision == "2025-11-25"
    assert made.layers.under_way == {}


async def test_what_is_refused_reaches_nobody_and_gives_back_what_it_took() -> None:
    server, judge = offering(), Judge()
    made = gateway(a=server)
    made.layers.governor, ends = judge, watched(made)
    judge.why = refuse(Refusal.NOT_ALLOWED, "no")
    async with running(made, server), user(made) as client:
        with pytest.raises(RpcError, match="no"):
            await client.call("a__n")
    assert server.count("tools/call") == 0
    assert (judge.judged, judge.given_back) == (["a__n"], 1)
    assert [end.status for end in ends] == ["denied"]


async def test_what_does_not_exist_is_not_judged() -> None:
    server, judge = offering(), Judge()
    made = gateway(a=server)
    made.layers.governor = judge
    async with running(made, server):
        client = await poster(made)
        assert (await client.refusal("tools/call", name="a__x")).code == -32602
    assert judge.judged == []


async def test_a_call_may_be_answered_in_its_place() -> None:
    server, judge = offering(), Judge()
    made = gateway(a=server)
    made.layers.governor, ends = judge, watched(made)
    judge.instead = Raw(b'{"content":[{"type":"text","text":"no such path"}],"isError":true}')
    async with running(made, server):
        client = await poster(made)
        answer = await client.call("a__n")
    assert text_of(answer) == "no such path"
    assert server.count("tools/call") == 0
    assert [(end.status, end.upstream) for end in ends] == [("tool_error", 0.0)]


async def test_a_call_that_is_stopped_is_answered_with_the_reason_and_its_server_told() -> None:
    server, hold = offering(), Hold()
    made = gateway(a=server)
    server.methods["tools/call"] = hold
    ends = watched(made)
    async with asyncio.timeout(10), running(made, server), user(made) as client:
        calling = asyncio.create_task(client.call("a__n"))
        await hold.begun.wait()
        layers = made.layers
        why = refuse(Refusal.DISABLED, "stopped")
        assert layers.stop(lambda passage: passage.name == "b__n", lambda _: why) == 0
        assert layers.stop(lambda passage: passage.name == "a__n", lambda _: why) == 1
        with pytest.raises(RpcError, match="stopped"):
            await calling
        await server.until_heard("notifications/cancelled")
        assert layers.under_way == {}
    assert [end.status for end in ends] == ["disabled"]


async def test_a_call_that_its_client_cancels_has_ended_too() -> None:
    server, hold = offering(), Hold()
    made = gateway(a=server)
    server.methods["tools/call"] = hold
    ends = watched(made)
    async with asyncio.timeout(10), running(made, server):
        client = await poster(made)
        calling = asyncio.create_task(client.call("a__n"))
        await hold.begun.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await server.until_heard("notifications/cancelled")
    assert [end.status for end in ends] == ["cancelled"]


UNREADABLE = (
    b'{"name":"a__n","name":"a__x","arguments":{}}',
    b'{"name":"a__n","arguments":{},"arguments":{"b":1}}',
    b'["a__n"]',
)


@pytest.mark.parametrize("params", UNREADABLE)
async def test_a_call_whose_params_cannot_be_read_has_ended_too(params: bytes) -> None:
    server = offering()
    made = gateway(a=server)
    ends = watched(made)
    async with running(made, server), user(made) as client:
        for method in ("tools/call", "prompts/get", "resources/read", "completion/complete"):
            with pytest.raises(RpcError, match="Invalid params"):
                await client.connection.call(method, Raw(params))
        with pytest.raises(RpcError, match="Invalid params"):
            await client.connection.call("tools/list", Raw(params))
    assert [(end.method, end.status, end.code) for end in ends] == [
        ("tools/call", "error", -32602),
        ("prompts/get", "error", -32602),
        ("resources/read", "error", -32602),
        ("completion/complete", "error", -32602),
    ]
    assert made.layers.under_way == {}


@pytest.mark.parametrize("params", UNREADABLE)
async def test_so_has_one_of_the_envelope_era(params: bytes) -> None:
    made = gateway()
    ends, why = watched(made), RpcError.invalid_params("no")
    for method in ("tools/call", "tools/list", "vendor/x"):
        made.refused(Request(7, method, Raw(params)), Principal("anna"), why)
    assert [(end.method, end.status, end.principal.subject) for end in ends] == [
        ("tools/call", "error", "anna")
    ]
    made.layers.events = Events()
    made.refused(Request(7, "tools/call", Raw(params)), Principal("anna"), why)  # for nobody


async def test_methods_that_nobody_can_judge_are_passed_on_only_where_nobody_judges() -> None:
    server = offering()
    made = gateway(a=server)
    async with running(made, server), user(made) as client:
        await client.ask("vendor/x", {})
        made.layers.governor = Judge()
        with pytest.raises(RpcError, match="Method not found"):
            await client.ask("vendor/x", {})


async def test_clients_are_answered_first_and_those_who_listen_are_told_of_all_in_order() -> None:
    server, put_off = offering(), list[Callable[[], None]]()
    made = gateway(a=server)
    ends = watched(made)
    made.layers.events.later = lambda _, then: put_off.append(then)
    async with running(made, server):
        client = await poster(made)
        await client.call("a__n")
        await client.ask("prompts/get", name="a__p")
        assert made.layers.under_way == {}  # they are over
        assert (len(put_off), ends) == (1, [])  # and nobody has been told
        put_off.pop()()
        assert [end.method for end in ends] == ["tools/call", "prompts/get"]
        await client.call("a__n")
        assert (len(put_off), len(ends)) == (1, 2)
        for _ in range(MANY - 1):
            await client.call("a__n")
        assert (len(put_off), len(ends)) == (2, 2)
        put_off.pop()()
        assert len(ends) == 2 + MANY  # so many are not put off any longer
        await client.call("a__n")
        await client.refusal("tools/call", name="none")
        assert len(ends) == 2 + MANY  # refused or not
        put_off.pop()()
        assert [end.status for end in ends[-2:]] == ["success", "unknown"]  # as they ended
        await client.call("a__n")
    assert len(ends) == 5 + MANY  # nor anything beyond the end


@pytest.mark.parametrize(
    ("result", "error", "status"),
    [
        (Raw(b'{"content":[]}'), None, "success"),
        (Raw(b'{"content":[],"isError":true}'), None, "tool_error"),
        (Raw(b'{"content":["%s"]}' % (b"x" * 100_000)), None, "success"),
        ({}, None, "success"),
        (Raw(b"{}"), RpcError(1, "theirs"), "error"),
        (None, RpcError(1, "theirs"), "error"),
    ],
)
def test_how_a_call_ended_is_found_out_later_and_is_the_same(
    result: object, error: RpcError | None, status: str
) -> None:
    layers, put_off, ends = Layers(), list[Callable[[], None]](), list[Event]()
    passage, answer, left = passing(entry=ENTRY), Due(), list[str]()
    layers.events.later = lambda _, then: put_off.append(then)
    layers.under_way[passage] = None
    passage.leaving = (lambda: left.append("left"),)
    layers.events.listen(ends.append)
    send(layers, passage, answer)
    answer.error = error
    answer.settle(result)
    layers.end(passage, None, OSError())  # what comes later is no news
    assert (layers.under_way, left, layers.events.untold) == ({}, ["left"], 1)
    put_off.pop()()
    (ended,) = ends
    assert isinstance(ended, CallEnded)
    assert (ended.status, ended.code) == (status, None if error is None else 1)
    assert ended.upstream <= ended.total
    assert ended.bytes_out == (len(result) if isinstance(result, Raw) else 0)
    assert layers.events.untold == 0


def test_a_call_that_has_waited_has_been_given_its_span_by_then() -> None:
    layers, early, later, answer = Layers(), passing(entry=ENTRY), passing(entry=ENTRY), Due()
    layers.tracer = tracer = Mock()
    layers.begin(early, None)
    send(layers, early, answer)
    send(layers, later, answer)
    assert [call.args[0] for call in tracer.begin.call_args_list] == [early, later]
    assert layers.under_way == {early: answer, later: answer}


def test_to_stop_a_call_is_to_answer_with_the_reason() -> None:
    layers, why = Layers(), refuse(Refusal.DISABLED, "stopped")
    early, sent = passing(entry=ENTRY), passing(entry=ENTRY)
    layers.under_way |= {early: None, sent: None}
    answer = Due()
    send(layers, sent, answer)
    assert layers.stop(lambda _: True, lambda _: why) == 2
    assert (early.stopped, answer.error) == (why, why)  # nobody has begun, or it has ended
    assert list(layers.under_way) == [early]


def test_nobody_is_told_of_a_call_that_went_well_if_nobody_wants_to_know() -> None:
    layers, ends = Layers(), list[Event]()
    passage, answer = passing(entry=ENTRY), Due()
    layers.under_way[passage] = None
    layers.events.listen(ends.append, calls="failed")
    send(layers, passage, answer)
    answer.settle(Raw(b"{}"))
    assert (layers.under_way, layers.events.untold, ends) == ({}, 0, [])
