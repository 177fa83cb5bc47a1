"""Calls of the envelope era whose servers ask something: parked, resumed once, and never lost."""

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest

from tests.gateway.letters import CAPABILITIES, Paper, Poster, letter, poster
from tests.gateway.servers import Hold, Server, User, add, running, tool
from tests.gateway.test_layers import watched
from tests.jsonrpc.test_channel import settle
from trunkline.gateway import parking as module
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.parking import Limits, Parking
from trunkline.gateway.sealing import KeyRing, Seal
from trunkline.gateway.session import Identity
from trunkline.jsonrpc import Raw, RpcError, from_raw
from trunkline.mcp.principal import LOCAL

FORM: dict[str, Any] = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
ASKABLE: dict[str, Any] = {CAPABILITIES: {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}}
YES: dict[str, Any] = {"action": "accept", "content": {"ok": True}}


class Curious(Server):
    """A server whose tool asks what the test wants it to ask, and says what it was answered."""

    def __init__(self, *questions: tuple[str, Any]) -> None:
        super().__init__(tools=[tool("t")])
        self.questions = list(questions)
        self.runs_of_tool = 0
        self.cancelled = asyncio.Event()
        self.methods["tools/call"] = self.run

    async def run(self, _: Any) -> Any:
        self.runs_of_tool += 1
        line, answers = self.line, list[Any]()
        try:
            for method, params in self.questions:
                try:
                    answers.append(from_raw(await line.call(method, params), object))
                except RpcError as error:
                    answers.append(error.code)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"content": [], "structuredContent": {"answers": answers}}


def parking(**limits: Any) -> Parking:
    return Parking(Seal(KeyRing.random()), Limits(**limits))


def gateway(server: Server, parked: Parking | None = None) -> Gateway:
    parked = parking() if parked is None else parked  # one that is empty counts as nothing
    made = Gateway(Identity("g", "1"), chance=lambda: 0.0, parking=parked)
    add(made, "s", server)
    return made


def retry(asked: Any, *answers: Any, **more: Any) -> dict[str, Any]:
    """Return what a client adds to its call to answer what it was asked, in order."""
    keys = asked["inputRequests"]
    said = dict(zip(keys, answers, strict=False))
    return {"inputResponses": said, "requestState": asked["requestState"], **more}


async def refused(client: Poster, **members: Any) -> int:
    with pytest.raises(RpcError) as caught:
        await client.call("s__t", **members)
    return caught.value.code


@pytest.mark.holds("T88", "T30")
async def test_a_question_is_asked_with_the_answer_and_the_tool_runs_once() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE, arguments={"a": 1})
        assert asked["resultType"] == "input_required"
        assert "ttlMs" not in asked
        ((key, question),) = asked["inputRequests"].items()
        assert question == {"method": "elicitation/create", "params": {"mode": "form", **FORM}}
        assert [(p.backend, p.questions) for p in made.stateless.parking.snapshot()] == [("s", 1)]
        answers: Any = {"inputResponses": {key: YES}, "requestState": asked["requestState"]}
        done = await client.call("s__t", _meta=ASKABLE, arguments={"a": 1}, **answers)
        assert done["structuredContent"] == {"answers": [YES]}
        assert done["resultType"] == "complete"
        assert server.runs_of_tool == 1
        assert len(made.stateless.parking) == 0


async def test_rounds_follow_each_other_and_questions_at_once_are_one_round() -> None:
    server = Curious(("elicitation/create", FORM), ("roots/list", None))

    async def both(params: Any) -> Any:
        line = server.line
        first = await asyncio.gather(line.call("roots/list"), line.call("roots/list"))
        await server.run(params)
        return {"content": [], "structuredContent": {"first": len(first)}}

    server.methods["tools/call"] = both
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        assert len(asked["inputRequests"]) == 2
        none: Any = {"roots": []}
        for answers in ((none, none), (YES,), (none,)):
            assert asked["resultType"] == "input_required"
            asked = await client.call("s__t", _meta=ASKABLE, **retry(asked, *answers))
        assert asked["structuredContent"] == {"first": 2}


@pytest.mark.holds("T35", "T36")
async def test_what_is_missing_is_asked_again_and_what_was_not_asked_is_ignored() -> None:
    server = Curious()

    async def both(_: Any) -> Any:
        line = server.line
        first = await asyncio.gather(line.call("roots/list"), line.call("elicitation/create", FORM))
        return {"content": [], "structuredContent": {"got": [from_raw(r) for r in first]}}

    server.methods["tools/call"] = both
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        again = await client.call(
            "s__t",
            _meta=ASKABLE,
            inputResponses={"other": YES, next(iter(asked["inputRequests"])): {"roots": []}},
            requestState=asked["requestState"],
        )
        assert [q["method"] for q in again["inputRequests"].values()] == ["elicitation/create"]
        done = await client.call("s__t", _meta=ASKABLE, **retry(again, YES))
        assert done["structuredContent"]["got"] == [{"roots": []}, YES]


@pytest.mark.holds("T33", "T34", "T90")
async def test_a_retry_that_is_not_the_one_asked_for_changes_nothing() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE, arguments={"a": 1})
        good = retry(asked, YES, arguments={"a": 1}, _meta=ASKABLE)
        state, ends = asked["requestState"], watched(made)
        for bad in (
            {"requestState": state[:-1] + ("A" if state[-1] != "A" else "B")},
            {"requestState": "v1.nonsense"},
            {"requestState": ""},
            {"requestState": None},
            {"arguments": {"a": 2}},
            {"inputResponses": {next(iter(asked["inputRequests"])): {"action": "maybe"}}},
        ):
            assert await refused(client, **good | bad) == -32602
        assert await refused(Poster(made, "somebody else"), **good) == -32602
        assert [(end.status, end.name, end.backend) for end in ends] == [("error", "s__t", "s")] * 7
        done = await client.call("s__t", **good)
        assert done["structuredContent"] == {"answers": [YES]}
        assert await refused(client, **good) == -32602
        assert server.runs_of_tool == 1


@pytest.mark.holds("T91")
async def test_who_never_comes_back_has_given_up() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server, parking(ttl=0.01)), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        await server.until_heard("notifications/cancelled")
        assert len(made.stateless.parking) == 0
        assert await refused(client, **retry(asked, YES, _meta=ASKABLE)) == -32602


@pytest.mark.holds("T31")
@pytest.mark.parametrize("declared", [{"sampling": {}}, {}])
async def test_what_was_not_declared_is_not_asked_and_said_to_be_missing(declared: Any) -> None:
    server = Curious(("elicitation/create", FORM))

    async def insist(_: Any) -> Any:
        await server.line.call("elicitation/create", FORM)

    async with running(gateway(server), server) as made:
        client = await poster(made)
        only: Any = {CAPABILITIES: declared}
        done = await client.call("s__t", _meta=only)
        assert done["structuredContent"] == {"answers": [-32601]}  # it can do without
        server.methods["tools/call"] = insist
        error = await client.refusal("tools/call", name="s__t", _meta=only)
        assert error.code == -32021
        assert error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.holds("T89")
async def test_two_clients_are_asked_about_their_own_calls() -> None:
    server = Curious(("elicitation/create", FORM))

    async def run(params: Any) -> Any:
        line, who = server.line, params["arguments"]["who"]
        answer = from_raw(await line.call("elicitation/create", FORM | {"message": who}), object)
        return {"content": [], "structuredContent": {"who": who, "answer": answer}}

    server.methods["tools/call"] = run
    async with running(gateway(server), server) as made:
        one = await poster(made)
        two = Poster(made, "two")
        asked: dict[str, Any] = {}
        for who, client in (("one", one), ("two", two)):
            asked[who] = await client.call("s__t", _meta=ASKABLE, arguments={"who": who})
        for who, client in (("two", two), ("one", one)):
            (question,) = asked[who]["inputRequests"].values()
            assert question["params"]["message"] == who
            answer = {"action": "accept", "content": {"by": who}}
            done = await client.call(
                "s__t", **retry(asked[who], answer, arguments={"who": who}, _meta=ASKABLE)
            )
            assert done["structuredContent"] == {"who": who, "answer": answer}


async def test_so_many_and_no_more_may_be_parked() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server, parking(most_each=1)), server) as made:
        client = await poster(made)
        await client.call("s__t", _meta=ASKABLE)
        error = await client.refusal("tools/call", name="s__t", _meta=ASKABLE)
        assert (error.code, error.data) == (-32603, {"retryAfter": 1})
        other = await Poster(made, "other").call("s__t", _meta=ASKABLE)
        assert other["resultType"] == "input_required"


async def test_what_ends_while_its_client_is_away_is_there_when_it_comes_back() -> None:
    server = Curious()
    asking = asyncio.Event()

    async def impatient(_: Any) -> Any:
        question = asyncio.create_task(server.line.call("elicitation/create", FORM))
        await asking.wait()
        question.cancel()
        return {"content": [], "structuredContent": {"done": True}}

    server.methods["tools/call"] = impatient
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        asking.set()
        await server.until_heard("tools/call")
        done = await client.call("s__t", _meta=ASKABLE, **retry(asked, YES))
        assert done["structuredContent"] == {"done": True}


async def test_progress_is_told_to_whoever_waits_now_and_to_nobody_meanwhile() -> None:
    server = Curious()

    async def run(params: Any) -> Any:
        line, token = server.line, params["_meta"]["progressToken"]
        for step in (1, 2):
            news = {"progressToken": token, "progress": step}
            await line.notify("notifications/progress", news)
            if step == 1:
                await line.call("elicitation/create", FORM)
        return {"content": []}

    server.methods["tools/call"] = run
    async with running(gateway(server), server) as made:
        client, first, second = await poster(made), Paper(), Paper()
        meta = ASKABLE | {"progressToken": "one"}
        asked = await client.call("s__t", first, _meta=meta)
        await client.call(
            "s__t", second, **retry(asked, YES, _meta=ASKABLE | {"progressToken": "two"})
        )
        told = [[news["progressToken"] for _, news in p.everything()] for p in (first, second)]
        assert told == [["one"], ["two"]]


async def test_a_retry_need_not_wait_for_servers_that_are_still_starting() -> None:
    server, slow = Curious(("elicitation/create", FORM)), Server(tools=[tool("t")])
    slow.methods["initialize"] = Hold()
    made = gateway(server)
    add(made, "slow", slow)
    async with running(made, server, slow):
        client = Poster(made)
        made.registry.start()
        while not made.registry.upstream("s").ready:
            await asyncio.sleep(0)
        asked = await client.call("s__t", _meta=ASKABLE)
        assert not made.ready
        done = await client.call("s__t", _meta=ASKABLE, **retry(asked, YES))
        assert done["structuredContent"] == {"answers": [YES]}


async def test_a_call_that_was_answered_is_let_go_of_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not when the collector comes round to it: its answer may be large, and there may be many."""
    begun: list[ref[module.Exchange]] = []

    def note(*about: Any) -> module.Exchange:
        exchange = module.Exchange(*about)
        begun.append(ref(exchange))
        return exchange

    monkeypatch.setattr("trunkline.gateway.stateless.Exchange", note)
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server), server) as made:
        client = await poster(made)
        gc.disable()
        try:
            asked = await client.call("s__t", _meta=ASKABLE)
            await client.call("s__t", _meta=ASKABLE, **retry(asked, YES))
            refusing = client.refusal("tools/call", name="s__none", _meta=ASKABLE)
            assert (await refusing).code == -32602
            await settle()
            assert [exchange() for exchange in begun] == [None, None]
        finally:
            gc.enable()


@pytest.mark.parametrize("moments", [0, 1, 2, 3, 20])
async def test_a_question_that_comes_when_its_call_ends_is_answered_all_the_same(
    moments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHER", 60.0)  # the call ends first, however busy the machine is
    server = Curious()
    asking: list[asyncio.Task[Any]] = []

    async def rude(_: Any) -> Any:
        asking.append(asyncio.create_task(server.ask("elicitation/create", FORM)))
        for _ in range(moments):
            await asyncio.sleep(0)
        return {"content": []}

    server.methods["tools/call"] = rude
    async with running(gateway(server), server) as made:
        client = await poster(made)
        assert (await client.call("s__t", _meta=ASKABLE))["resultType"] == "complete"
        try:
            assert await asking[0] == {"action": "cancel"}
        except RpcError as error:
            assert error.code == -32601  # it came later: then nobody is calling
        assert len(made.stateless.parking) == 0


async def test_a_retry_may_be_asked_what_it_declares_itself() -> None:
    server = Curious(("elicitation/create", FORM), ("roots/list", None))
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        less: Any = {CAPABILITIES: {"elicitation": {}}}
        done = await client.call("s__t", _meta=less, **retry(asked, YES))
        assert done["structuredContent"] == {"answers": [YES, -32601]}


async def test_so_much_and_no_more_may_be_asked_in_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GATHER", 0.5)  # a busy machine may take long to ask it all
    large = FORM | {"message": "x" * (3 * 1024 * 1024)}
    server = Curious()
    refused: list[int] = []

    async def ask(params: Any) -> None:
        try:
            await server.ask("elicitation/create", params)
        except RpcError as error:
            refused.append(error.code)

    async def run(_: Any) -> Any:
        await asyncio.gather(ask(large), ask(large), *(ask(FORM) for _ in range(64)))
        return {"content": []}

    server.methods["tools/call"] = run
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        assert len(asked["inputRequests"]) == 64
        await client.call("s__t", _meta=ASKABLE, **retry(asked, *[YES] * 64))
        assert refused == [-32603, -32603]


async def test_so_much_and_no_more_is_held_for_those_who_are_parked() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server, parking(most_bytes=5000)), server) as made:
        client = await poster(made)
        much: dict[str, Any] = {"arguments": {"a": "x" * 3000}}
        for _ in range(3):  # what is held for one is given back
            asked = await client.call("s__t", _meta=ASKABLE, **much)
            await client.call("s__t", _meta=ASKABLE, **retry(asked, YES), **much)
        asked = await client.call("s__t", _meta=ASKABLE, **much)
        error = await client.refusal("tools/call", name="s__t", _meta=ASKABLE, **much)
        assert (error.code, error.data) == (-32603, {"retryAfter": 1})


async def test_a_state_of_a_mebibyte_and_an_answer_given_twice_are_refused() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        good = retry(asked, YES, _meta=ASKABLE)
        assert await refused(client, **good | {"requestState": "v1." + "A" * 2**20}) == -32602
        (key,) = asked["inputRequests"]
        twice = Raw(b'{"%b":{"action":"decline"},"%b":{"action":"accept"}}' % ((key.encode(),) * 2))
        assert await refused(client, **good | {"inputResponses": twice}) == -32602
        done = await client.call("s__t", **good)
        assert done["structuredContent"] == {"answers": [YES]}


async def test_those_who_wait_for_their_clients_leave_their_places_to_others() -> None:
    server = Curious(("elicitation/create", FORM))
    made = Gateway(Identity("g", "1"), chance=lambda: 0.0, parking=parking())
    add(made, "s", server, max_in_flight=1)
    async with running(made, server):
        client = await poster(made)
        first = await client.call("s__t", _meta=ASKABLE)
        second = await client.call("s__t", _meta=ASKABLE)
        upstream = made.registry.upstream("s")
        assert upstream.turns.at_once == 3
        for asked in (second, first):
            await client.call("s__t", _meta=ASKABLE, **retry(asked, YES))
        assert (upstream.turns.at_once, len(upstream.turns)) == (1, 0)


async def test_who_goes_while_questions_are_gathered_has_cancelled() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server), server) as made:
        client = await poster(made)
        calling = asyncio.create_task(client.call("s__t", _meta=ASKABLE))
        await server.until_heard("tools/call")
        calling.cancel()
        await server.until_heard("notifications/cancelled")
        assert len(made.stateless.parking) == 0


async def test_when_the_server_dies_its_parked_calls_fail_as_soon_as_anybody_asks() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        assert made.registry.snapshot()[0].in_flight == 1
        await server.die()
        while made.registry.snapshot()[0].in_flight:
            await asyncio.sleep(0)
        assert await refused(client, **retry(asked, YES, _meta=ASKABLE)) == 5030
        assert len(made.stateless.parking) == 0
        again = await client.call("s__t", _meta=ASKABLE)
        assert again["resultType"] == "input_required"
        assert server.runs_of_tool == 2  # once for each call


async def test_an_end_of_the_gateway_gives_up_what_is_parked_and_parks_no_more() -> None:
    server = Curious(("elicitation/create", FORM), ("sampling/createMessage", {}))
    made = gateway(server)
    async with running(made, server):
        client = await poster(made)
        await client.call("s__t", _meta=ASKABLE)
        calling = asyncio.create_task(client.call("s__t", _meta=ASKABLE))
        for _ in range(2):
            await server.until_heard("tools/call")
        made.stateless.parking.close()
        await server.until_heard("notifications/cancelled")
        with pytest.raises(RpcError, match="the gateway ends"):
            await calling
        assert len(made.stateless.parking) == 0


async def test_a_retry_may_come_another_way_than_the_call() -> None:
    server = Curious(("elicitation/create", FORM))
    async with running(gateway(server), server) as made:
        client = await poster(made)
        client.principal = LOCAL
        asked = await client.call("s__t", _meta=ASKABLE)
        async with User(made) as somebody:  # on a pipe, without a handshake
            params = letter(ASKABLE, name="s__t", **retry(asked, YES))
            done = await somebody.ask("tools/call", params)
            assert done["structuredContent"] == {"answers": [YES]}
            first = await somebody.ask("tools/call", letter(ASKABLE, name="s__t"))
        done = await client.call("s__t", _meta=ASKABLE, **retry(first, YES))
        assert done["structuredContent"] == {"answers": [YES]}


async def test_who_waits_for_a_conversation_learns_that_the_server_has_ended() -> None:
    server = Curious(("elicitation/create", FORM))
    made = Gateway(Identity("g", "1"), chance=lambda: 0.0, parking=parking())
    add(made, "s", server, max_conversations=1)
    async with running(made, server):
        client = await poster(made)
        first = server.channel
        await client.call("s__t", _meta=ASKABLE)
        waiting = asyncio.create_task(client.call("s__t", _meta=ASKABLE))
        await asyncio.sleep(0)
        await first.aclose()
        with pytest.raises(RpcError, match="Upstream unavailable: s: it ended"):
            await waiting
