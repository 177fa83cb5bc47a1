"""Stateless calls whose server sends requests: suspended, resumed once, and never lost."""

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest

from tests.gateway.servers import (
    NO_GRACE,
    HeldAnswer,
    Server,
    SessionClient,
    add,
    running,
    tool,
)
from tests.gateway.stateless_callers import (
    CAPABILITIES,
    RecordingStream,
    StatelessCaller,
    stateless_caller,
    stateless_params,
)
from tests.gateway.test_pipeline import record_calls
from tests.tasks import LoopClock, settle
from trunkline.gateway import suspended_calls as module
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.request_state import KeyRing, StateCipher
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import SuspendedCallLimits
from trunkline.gateway.suspended_calls import SuspendedCalls
from trunkline.jsonrpc import Raw, RpcError, from_raw
from trunkline.mcp.identity import LOCAL_PRINCIPAL

FORM: dict[str, Any] = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
INPUT_META: dict[str, Any] = {
    CAPABILITIES: {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
}
YES: dict[str, Any] = {"action": "accept", "content": {"ok": True}}


class AskingServer(Server):
    """A server whose tool sends these requests, and returns the answers."""

    def __init__(self, *questions: tuple[str, Any]) -> None:
        super().__init__(tools=[tool("t")])
        self.questions = list(questions)
        self.runs_of_tool = 0
        self.cancelled = asyncio.Event()
        self.methods["tools/call"] = self.run

    async def run(self, _: Any) -> Any:
        self.runs_of_tool += 1
        line, answers = self.active_connection, list[Any]()
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


def suspended_calls(**limits: Any) -> SuspendedCalls:
    return SuspendedCalls(StateCipher(KeyRing.generate()), SuspendedCallLimits(**limits))


def make_gateway(server: Server, calls: SuspendedCalls | None = None, **settings: Any) -> Gateway:
    calls = suspended_calls() if calls is None else calls  # an empty one is falsy
    gateway = Gateway(
        GatewayIdentity("g", "1"), lambda: 0.0, suspended_calls=calls, limits=NO_GRACE
    )
    add(gateway, "s", server, **settings)
    return gateway


def retry(suspended: Any, *answers: Any, **more: Any) -> dict[str, Any]:
    """Return the members of a retry with these answers, in order."""
    keys = suspended["inputRequests"]
    responses = dict(zip(keys, answers, strict=False))
    return {"inputResponses": responses, "requestState": suspended["requestState"], **more}


async def refused(client: StatelessCaller, **members: Any) -> int:
    with pytest.raises(RpcError) as caught:
        await client.call("s__t", **members)
    return caught.value.code


@pytest.mark.holds("T88", "T30")
async def test_a_question_becomes_the_answer_and_the_tool_runs_once() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META, arguments={"a": 1})
        assert suspended["resultType"] == "input_required"
        assert "ttlMs" not in suspended
        ((key, question),) = suspended["inputRequests"].items()
        assert question == {"method": "elicitation/create", "params": {"mode": "form", **FORM}}
        assert [(p.backend, p.questions) for p in gateway.stateless.suspended_calls.snapshot()] == [
            ("s", 1)
        ]
        answers: Any = {"inputResponses": {key: YES}, "requestState": suspended["requestState"]}
        done = await client.call("s__t", _meta=INPUT_META, arguments={"a": 1}, **answers)
        assert done["structuredContent"] == {"answers": [YES]}
        assert done["resultType"] == "complete"
        assert server.runs_of_tool == 1
        assert len(gateway.stateless.suspended_calls) == 0


async def test_rounds_follow_each_other_and_simultaneous_questions_share_one_round() -> None:
    server = AskingServer(("elicitation/create", FORM), ("roots/list", None))

    async def both(params: Any) -> Any:
        line = server.active_connection
        first = await asyncio.gather(line.call("roots/list"), line.call("roots/list"))
        await server.run(params)
        return {"content": [], "structuredContent": {"first": len(first)}}

    server.methods["tools/call"] = both
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        assert len(suspended["inputRequests"]) == 2
        none: Any = {"roots": []}
        for answers in ((none, none), (YES,), (none,)):
            assert suspended["resultType"] == "input_required"
            suspended = await client.call("s__t", _meta=INPUT_META, **retry(suspended, *answers))
        assert suspended["structuredContent"] == {"first": 2}


@pytest.mark.holds("T35", "T36")
async def test_missing_answers_are_asked_again_and_unknown_ones_ignored() -> None:
    server = AskingServer()

    async def both(_: Any) -> Any:
        line = server.active_connection
        first = await asyncio.gather(line.call("roots/list"), line.call("elicitation/create", FORM))
        return {"content": [], "structuredContent": {"got": [from_raw(r) for r in first]}}

    server.methods["tools/call"] = both
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        again = await client.call(
            "s__t",
            _meta=INPUT_META,
            inputResponses={"other": YES, next(iter(suspended["inputRequests"])): {"roots": []}},
            requestState=suspended["requestState"],
        )
        assert [q["method"] for q in again["inputRequests"].values()] == ["elicitation/create"]
        done = await client.call("s__t", _meta=INPUT_META, **retry(again, YES))
        assert done["structuredContent"]["got"] == [{"roots": []}, YES]


@pytest.mark.holds("T33", "T34", "T90")
async def test_a_retry_for_another_call_changes_nothing() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META, arguments={"a": 1})
        good = retry(suspended, YES, arguments={"a": 1}, _meta=INPUT_META)
        state, ends = suspended["requestState"], record_calls(gateway)
        for bad in (
            {"requestState": state[:-1] + ("A" if state[-1] != "A" else "B")},
            {"requestState": "v1.nonsense"},
            {"requestState": ""},
            {"requestState": None},
            {"arguments": {"a": 2}},
            {"inputResponses": {next(iter(suspended["inputRequests"])): {"action": "maybe"}}},
        ):
            assert await refused(client, **good | bad) == -32602
        assert await refused(StatelessCaller(gateway, "user else"), **good) == -32602
        assert [(end.status, end.name, end.backend) for end in ends] == [("error", "s__t", "s")] * 7
        done = await client.call("s__t", **good)
        assert done["structuredContent"] == {"answers": [YES]}
        assert await refused(client, **good) == -32602
        assert server.runs_of_tool == 1


@pytest.mark.holds("T91")
async def test_a_client_that_never_returns_abandons_its_call() -> None:
    LoopClock().skip_idle_time()
    server = AskingServer(("elicitation/create", FORM))
    async with running(
        make_gateway(server, suspended_calls(input_timeout=0.01)), server
    ) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        await server.wait_received("notifications/cancelled")
        assert len(gateway.stateless.suspended_calls) == 0
        assert await refused(client, **retry(suspended, YES, _meta=INPUT_META)) == -32602


@pytest.mark.holds("T31")
@pytest.mark.parametrize("declared", [{"sampling": {}}, {}])
async def test_an_undeclared_question_is_not_sent_and_named_as_missing(declared: Any) -> None:
    server = AskingServer(("elicitation/create", FORM))

    async def insist(_: Any) -> Any:
        await server.active_connection.call("elicitation/create", FORM)

    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        only: Any = {CAPABILITIES: declared}
        done = await client.call("s__t", _meta=only)
        assert done["structuredContent"] == {"answers": [-32601]}  # it can do without
        server.methods["tools/call"] = insist
        error = await client.expect_error("tools/call", name="s__t", _meta=only)
        assert error.code == -32021
        assert error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.holds("T89")
async def test_two_clients_are_asked_about_their_own_calls() -> None:
    server = AskingServer(("elicitation/create", FORM))

    async def run(params: Any) -> Any:
        line, who = server.active_connection, params["arguments"]["who"]
        answer = from_raw(await line.call("elicitation/create", FORM | {"message": who}), object)
        return {"content": [], "structuredContent": {"who": who, "answer": answer}}

    server.methods["tools/call"] = run
    async with running(make_gateway(server), server) as gateway:
        one = await stateless_caller(gateway)
        two = StatelessCaller(gateway, "two")
        suspended: dict[str, Any] = {}
        for who, client in (("one", one), ("two", two)):
            suspended[who] = await client.call("s__t", _meta=INPUT_META, arguments={"who": who})
        for who, client in (("two", two), ("one", one)):
            (question,) = suspended[who]["inputRequests"].values()
            assert question["params"]["message"] == who
            answer = {"action": "accept", "content": {"by": who}}
            done = await client.call(
                "s__t", **retry(suspended[who], answer, arguments={"who": who}, _meta=INPUT_META)
            )
            assert done["structuredContent"] == {"who": who, "answer": answer}


async def test_the_number_of_suspended_calls_is_limited() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with running(
        make_gateway(server, suspended_calls(max_calls_per_principal=1)), server
    ) as gateway:
        client = await stateless_caller(gateway)
        await client.call("s__t", _meta=INPUT_META)
        error = await client.expect_error("tools/call", name="s__t", _meta=INPUT_META)
        assert (error.code, error.data) == (-32603, {"retryAfter": 1})
        other = await StatelessCaller(gateway, "other").call("s__t", _meta=INPUT_META)
        assert other["resultType"] == "input_required"


async def test_a_call_that_ends_while_its_client_is_away_keeps_its_result() -> None:
    server = AskingServer()
    asking = asyncio.Event()

    async def impatient(_: Any) -> Any:
        question = asyncio.create_task(server.active_connection.call("elicitation/create", FORM))
        await asking.wait()
        question.cancel()
        return {"content": [], "structuredContent": {"done": True}}

    server.methods["tools/call"] = impatient
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        asking.set()
        await server.wait_received("tools/call")
        done = await client.call("s__t", _meta=INPUT_META, **retry(suspended, YES))
        assert done["structuredContent"] == {"done": True}


async def test_progress_goes_to_the_current_request_and_is_dropped_between_requests() -> None:
    server = AskingServer()

    async def run(params: Any) -> Any:
        line, token = server.active_connection, params["_meta"]["progressToken"]
        for step in (1, 2):
            news = {"progressToken": token, "progress": step}
            await line.notify("notifications/progress", news)
            if step == 1:
                await line.call("elicitation/create", FORM)
        return {"content": []}

    server.methods["tools/call"] = run
    async with running(make_gateway(server), server) as gateway:
        client, first, second = (
            await stateless_caller(gateway),
            RecordingStream(),
            RecordingStream(),
        )
        meta = INPUT_META | {"progressToken": "one"}
        suspended = await client.call("s__t", first, _meta=meta)
        await client.call(
            "s__t", second, **retry(suspended, YES, _meta=INPUT_META | {"progressToken": "two"})
        )
        tokens = [
            [news["progressToken"] for _, news in p.take_notifications()] for p in (first, second)
        ]
        assert tokens == [["one"], ["two"]]


async def test_a_retry_does_not_wait_for_servers_that_are_still_starting() -> None:
    server, slow = AskingServer(("elicitation/create", FORM)), Server(tools=[tool("t")])
    slow.methods["initialize"] = HeldAnswer()
    gateway = make_gateway(server)
    add(gateway, "slow", slow)
    async with running(gateway, server, slow):
        client = StatelessCaller(gateway)
        gateway.registry.start()
        while not gateway.registry.upstream("s").ready:
            await asyncio.sleep(0)
        suspended = await client.call("s__t", _meta=INPUT_META)
        assert not gateway.ready
        done = await client.call("s__t", _meta=INPUT_META, **retry(suspended, YES))
        assert done["structuredContent"] == {"answers": [YES]}


async def test_an_answered_call_is_released_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the garbage collector, since answers may be large and many."""
    begun: list[ref[module.SuspendedCall]] = []

    def note(*about: Any) -> module.SuspendedCall:
        exchange = module.SuspendedCall(*about)
        begun.append(ref(exchange))
        return exchange

    monkeypatch.setattr("trunkline.gateway.stateless.SuspendedCall", note)
    server = AskingServer(("elicitation/create", FORM))
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        gc.disable()
        try:
            suspended = await client.call("s__t", _meta=INPUT_META)
            await client.call("s__t", _meta=INPUT_META, **retry(suspended, YES))
            refusing = client.expect_error("tools/call", name="s__none", _meta=INPUT_META)
            assert (await refusing).code == -32602
            await settle()
            assert [exchange() for exchange in begun] == [None, None]
        finally:
            gc.enable()


@pytest.mark.parametrize("moments", [0, 1, 2, 3, 20])
async def test_a_question_at_the_end_of_its_call_gets_an_answer(
    moments: int,
) -> None:
    calls = suspended_calls(question_delay=60.0)  # the call ends first on the slowest machine
    server = AskingServer()
    asking: list[asyncio.Task[Any]] = []

    async def rude(_: Any) -> Any:
        asking.append(asyncio.create_task(server.ask("elicitation/create", FORM)))
        for _ in range(moments):
            await asyncio.sleep(0)
        return {"content": []}

    server.methods["tools/call"] = rude
    async with running(make_gateway(server, calls), server) as gateway:
        client = await stateless_caller(gateway)
        assert (await client.call("s__t", _meta=INPUT_META))["resultType"] == "complete"
        try:
            assert await asking[0] == {"action": "cancel"}
        except RpcError as error:
            assert error.code == -32601  # it came after the end of the call
        assert len(gateway.stateless.suspended_calls) == 0


async def test_a_retry_may_get_the_questions_it_declares_itself() -> None:
    server = AskingServer(("elicitation/create", FORM), ("roots/list", None))
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        less: Any = {CAPABILITIES: {"elicitation": {}}}
        done = await client.call("s__t", _meta=less, **retry(suspended, YES))
        assert done["structuredContent"] == {"answers": [YES, -32601]}


async def test_the_number_and_size_of_the_questions_of_one_round_are_limited() -> None:
    LoopClock().skip_idle_time()
    calls = suspended_calls(question_delay=0.5)  # a slow machine needs long to send them all
    large = FORM | {"message": "x" * (3 * 1024 * 1024)}
    server = AskingServer()
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
    async with running(make_gateway(server, calls), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        assert len(suspended["inputRequests"]) == 64
        await client.call("s__t", _meta=INPUT_META, **retry(suspended, *[YES] * 64))
        assert refused == [-32603, -32603]


async def test_the_bytes_of_suspended_calls_are_limited() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with running(make_gateway(server, suspended_calls(max_bytes=5000)), server) as gateway:
        client = await stateless_caller(gateway)
        much: dict[str, Any] = {"arguments": {"a": "x" * 3000}}
        for _ in range(3):  # each call releases its bytes
            suspended = await client.call("s__t", _meta=INPUT_META, **much)
            await client.call("s__t", _meta=INPUT_META, **retry(suspended, YES), **much)
        suspended = await client.call("s__t", _meta=INPUT_META, **much)
        error = await client.expect_error("tools/call", name="s__t", _meta=INPUT_META, **much)
        assert (error.code, error.data) == (-32603, {"retryAfter": 1})


async def test_a_state_of_a_mebibyte_and_a_repeated_answer_are_refused() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        good = retry(suspended, YES, _meta=INPUT_META)
        assert await refused(client, **good | {"requestState": "v1." + "A" * 2**20}) == -32602
        (key,) = suspended["inputRequests"]
        twice = Raw(b'{"%b":{"action":"decline"},"%b":{"action":"accept"}}' % ((key.encode(),) * 2))
        assert await refused(client, **good | {"inputResponses": twice}) == -32602
        done = await client.call("s__t", **good)
        assert done["structuredContent"] == {"answers": [YES]}


async def test_calls_that_wait_for_their_clients_release_their_slots() -> None:
    server = AskingServer(("elicitation/create", FORM))
    gateway = make_gateway(server, max_in_flight=1)
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        first = await client.call("s__t", _meta=INPUT_META)
        second = await client.call("s__t", _meta=INPUT_META)
        upstream = gateway.registry.upstream("s")
        assert upstream.queue.max_in_flight == 3
        for suspended in (second, first):
            await client.call("s__t", _meta=INPUT_META, **retry(suspended, YES))
        assert (upstream.queue.max_in_flight, len(upstream.queue)) == (1, 0)


async def test_a_client_that_disconnects_while_questions_are_gathered_has_cancelled() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        calling = asyncio.create_task(client.call("s__t", _meta=INPUT_META))
        await server.wait_received("tools/call")
        calling.cancel()
        await server.wait_received("notifications/cancelled")
        assert len(gateway.stateless.suspended_calls) == 0


async def test_suspended_calls_of_a_server_that_dies_fail_with_the_next_retry() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        assert gateway.registry.snapshots()[0].in_flight == 1
        await server.crash()
        while gateway.registry.snapshots()[0].in_flight:
            await asyncio.sleep(0)
        assert await refused(client, **retry(suspended, YES, _meta=INPUT_META)) == 5030
        assert len(gateway.stateless.suspended_calls) == 0
        again = await client.call("s__t", _meta=INPUT_META)
        assert again["resultType"] == "input_required"
        assert server.runs_of_tool == 2  # once for each call


async def test_a_closing_gateway_abandons_suspended_calls_and_accepts_no_more() -> None:
    server = AskingServer(("elicitation/create", FORM), ("sampling/createMessage", {}))
    gateway = make_gateway(server)
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        await client.call("s__t", _meta=INPUT_META)
        calling = asyncio.create_task(client.call("s__t", _meta=INPUT_META))
        for _ in range(2):
            await server.wait_received("tools/call")
        gateway.stateless.suspended_calls.close()
        await server.wait_received("notifications/cancelled")
        with pytest.raises(RpcError, match="the gateway is shutting down"):
            await calling
        assert len(gateway.stateless.suspended_calls) == 0


async def test_a_retry_may_use_another_transport_than_the_call() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        client.principal = LOCAL_PRINCIPAL
        suspended = await client.call("s__t", _meta=INPUT_META)
        async with SessionClient(gateway) as user:  # on a pipe, without initialize
            params = stateless_params(INPUT_META, name="s__t", **retry(suspended, YES))
            done = await user.ask("tools/call", params)
            assert done["structuredContent"] == {"answers": [YES]}
            first = await user.ask("tools/call", stateless_params(INPUT_META, name="s__t"))
        done = await client.call("s__t", _meta=INPUT_META, **retry(first, YES))
        assert done["structuredContent"] == {"answers": [YES]}


async def test_a_call_queued_for_a_session_fails_when_the_server_ends() -> None:
    server = AskingServer(("elicitation/create", FORM))
    gateway = make_gateway(server, max_sessions=1)
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        first = server.transport
        await client.call("s__t", _meta=INPUT_META)
        waiting = asyncio.create_task(client.call("s__t", _meta=INPUT_META))
        await asyncio.sleep(0)
        await first.aclose()
        with pytest.raises(RpcError, match="Upstream unavailable: s: it ended"):
            await waiting
