"""Server requests in any order of events: both protocols, all kinds of retries, lost servers, time.

A state machine interleaves the events of two scripted servers, one of each protocol. It checks that
every tool runs once, that questions and answers belong to their call, and that nothing is left.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.gateway.clock import ClockLoop
from tests.gateway.servers import (
    NO_GRACE,
    Server,
    SessionClient,
    add,
    tool,
)
from tests.gateway.stateless_callers import CAPABILITIES, StatelessCaller, StatelessScriptedServer
from trunkline.backends.server_connection import TransportServerConnection
from trunkline.backends.session_server import SessionServer
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.request_state import KeyRing, StateCipher
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import SuspendedCallLimits
from trunkline.gateway.suspended_calls import SuspendedCalls
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    IdRemapper,
    RpcError,
    from_raw,
    memory_pipe,
)

TTL, TIMEOUT = 600.0, 60.0
FORM: dict[str, Any] = {"requestedSchema": {"type": "object", "properties": {}}}
PICKS = st.integers(0, 9)
WRONG = st.sampled_from([*["replayed"] * 4, "tampered", "other", "unfit", "stranger"])
STEPS = st.lists(st.integers(1, 2), min_size=1, max_size=2)
"""The number of simultaneous questions, step by step."""

BOTH: dict[str, Any] = {"elicitation": {}, "roots": {}}
FORMS: dict[str, Any] = {"elicitation": {}}
ROOTS: dict[str, Any] = {"roots": {}}
NOTHING: dict[str, Any] = {}
CAN = st.sampled_from([FORMS, FORMS, FORMS, FORMS, BOTH, ROOTS, NOTHING])


def question(who: str, number: int) -> dict[str, Any]:
    return {"message": f"{who}/{number}", **FORM}


def reply(question_params: Any) -> dict[str, Any]:
    """Return an answer that names its question."""
    return {"action": "accept", "content": {"to": question_params["message"]}}


class ServerSession:
    """One session with the asking server."""

    def __init__(self, server: "AskingServer", channel: Any) -> None:
        self.channel = channel
        self.dead = False
        self.line = Connection(channel, self, close_timeout=0.0)
        self._server = server

    def called(self, request: Any) -> Any:
        if request.method == "tools/call":
            return self._run(from_raw(request.params, dict[str, Any])["arguments"])
        return self._server.called(request)

    def notified(self, notification: Any) -> None:
        method = notification.method
        if method == "notifications/cancelled":
            self.line.cancel_request(from_raw(notification.params, dict[str, Any])["requestId"])

    def violated(self, violation: Exception) -> None:
        self._server.violations.append(violation)

    async def _run(self, arguments: Any) -> Any:
        who = arguments["who"]
        self._server.ran[who] += 1
        got: list[Any] = []
        for step, count in enumerate(arguments["steps"]):
            asking = [self._ask(question(who, 10 * step + n)) for n in range(count)]
            got += await asyncio.gather(*asking)
        if arguments.get("rude"):  # one more question, and its call ends before it is answered
            self._server.rude.append(asyncio.ensure_future(self._ask(question(who, 99))))
            await asyncio.sleep(0)
        return {"content": [], "structuredContent": {"who": who, "got": got}}

    async def _ask(self, params: Any) -> Any:
        self._server.open += 1
        try:
            answer = from_raw(await self.line.call("elicitation/create", params), dict[str, Any])
        except RpcError as error:
            if "incident" in str(error.data):
                self._server.wrong.append(params["message"])
            return error.code
        except ConnectionLost:
            return "lost"
        finally:
            self._server.open -= 1
        if answer["action"] == "accept":
            assert answer["content"] == {"to": params["message"]}
        return answer["action"]


class AskingServer(Server):
    """A session server whose requests are given by the arguments of its calls."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("t")])
        self.ran: Counter[str] = Counter()
        self.open = 0
        self.wrong: list[str] = []
        self.rude: list[asyncio.Future[Any]] = []
        self.sessions: list[ServerSession] = []

    async def connect(
        self, listener: BackendListener, remapper: IdRemapper, capabilities: Any
    ) -> Backend:
        near, far = memory_pipe()
        session = ServerSession(self, far)
        self.sessions.append(session)
        self.runs.append(asyncio.create_task(session.line.run()))
        remote = SessionServer(listener)
        link = TransportServerConnection(near, "s", remapper, remote, close_timeout=0.0)
        await remote.open(link, capabilities, {"name": "g"})
        return remote


class StatelessAskingServer(StatelessScriptedServer):
    """A stateless server that asks by results, and then completes."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("t")])
        self.ran: Counter[str] = Counter()
        self.methods["tools/call"] = self._run

    def _run(self, params: Any) -> Any:
        who, steps = params["arguments"]["who"], params["arguments"]["steps"]
        done, _, owner = params.get("requestState", f"0 {who}").partition(" ")
        assert owner == who
        for key, answer in params.get("inputResponses", {}).items():
            assert answer["content"] == {"to": key}, (key, answer)
        step = int(done)
        if step >= len(steps) or "elicitation" not in params["_meta"][CAPABILITIES]:
            self.ran[who] += 1
            result: dict[str, Any] = {"content": [], "structuredContent": {"who": who, "got": []}}
            return {"resultType": "complete", **result}
        question_params = [question(who, 10 * step + n) for n in range(steps[step])]
        return {
            "resultType": "input_required",
            "inputRequests": {
                q["message"]: {"method": "elicitation/create", "params": q} for q in question_params
            },
            "requestState": f"{step + 1} {who}",
        }


class Ask:
    """One call of a stateless client, from its first request to its end."""

    def __init__(self, who: str, principal: str, server: str, members: dict[str, Any]) -> None:
        self.who = who
        self.principal = principal
        self.name = f"{server}__t"
        self.members = members
        self.states: list[Any] = []
        self.suspended: Any = None
        """The questions that its client has not answered."""


class Questions(RuleBasedStateMachine):
    """Clients, servers and the gateway between them."""

    gateway: Gateway

    def __init__(self) -> None:
        super().__init__()
        self.loop = ClockLoop()
        asyncio.set_event_loop(self.loop)
        self.s, self.e = AskingServer(), StatelessAskingServer()
        self.incidents: list[Any] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.users: list[SessionClient] = []
        self.asks: list[Ask] = []
        self.owned: list[set[str]] = []
        self.last = 0

    @initialize(most=st.sampled_from([4, 2, 1, 0]), users=st.integers(0, 2), can=CAN)
    def begin(self, most: int, users: int, can: dict[str, Any]) -> None:
        async def begin() -> None:
            calls = SuspendedCalls(
                StateCipher(KeyRing.generate()),
                SuspendedCallLimits(TTL, max_calls=6, max_calls_per_principal=4),
            )
            gateway = Gateway(
                GatewayIdentity("g", "1"),
                lambda: 0.0,
                self.incidents.append,
                calls,
                limits=NO_GRACE,
            )
            add(gateway, "s", self.s, timeout=TIMEOUT, max_sessions=most, max_in_flight=5)
            add(gateway, "e", self.e, timeout=TIMEOUT)
            self.gateway = gateway
            for number in range(users):
                user = SessionClient(gateway, can)
                self.users.append(user)
                self.owned.append(set())
                user.answers["elicitation/create"] = lambda q, n=number: self._answer(n, q)
                await user.__aenter__()
                await user.hello()
            gateway.registry.start()  # without a client, servers learn of no features
            await gateway.registry.wait_complete()

        self.loop.run(begin())

    def _answer(self, number: int, question_params: Any) -> Any:
        assert question_params["message"].partition("/")[0] in self.owned[number]
        return reply(question_params)

    def _who(self) -> str:
        self.last += 1
        return f"w{self.last}"

    def _do(self, doing: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start something and let it run until it waits."""
        task = self.loop.create_task(doing)
        self.tasks.append(task)
        self.loop.run_for(0.1)
        return task

    # Stateless clients

    @rule(
        principal=st.sampled_from("ab"),
        server=st.sampled_from("ssse"),
        steps=STEPS,
        can=CAN,
        rude=st.booleans(),
    )
    def call(
        self, principal: str, server: str, steps: list[int], can: dict[str, Any], rude: bool
    ) -> None:
        who = self._who()
        arguments = {"who": who, "steps": steps, "rude": rude}
        ask = Ask(who, principal, server, {"_meta": {CAPABILITIES: can}, "arguments": arguments})
        self.asks.append(ask)
        self._send(ask)

    def _send(self, ask: Ask, **more: Any) -> None:
        self._do(self._take(ask, StatelessCaller(self.gateway, ask.principal), ask.members | more))

    async def _take(self, ask: Ask, client: StatelessCaller, members: dict[str, Any]) -> None:
        try:
            result = await client.call(ask.name, **members)
        except RpcError:
            return
        if result["resultType"] == "input_required":
            assert result["requestState"] not in ask.states
            ask.states.append(result["requestState"])
            ask.suspended = result
            for each in result["inputRequests"].values():
                assert each["params"]["message"].partition("/")[0] == ask.who
        else:
            assert result["structuredContent"]["who"] == ask.who
            can = "elicitation" in ask.members["_meta"][CAPABILITIES]
            # Clients without input share a session, so the target is ambiguous.
            known = {-32601, "accept", "cancel"} if can else {-32601, -32603}
            assert set(result["structuredContent"]["got"]) <= known

    def _waiting(self) -> list[Ask]:
        return [ask for ask in self.asks if ask.suspended is not None]

    @precondition(lambda self: bool(self._waiting()))
    @rule(
        pick=PICKS, rounds=st.sampled_from([1, 1, 3]), partial=st.sampled_from([False, False, True])
    )
    def retry(self, pick: int, rounds: int, partial: bool) -> None:
        """Answer all questions, and one unknown one, until the call ends."""
        waiting = self._waiting()
        ask = waiting[pick % len(waiting)]
        while ask.suspended is not None and rounds:
            suspended, ask.suspended, rounds = ask.suspended, None, rounds - 1
            responses = {
                key: reply(each["params"]) for key, each in suspended["inputRequests"].items()
            }
            if ask.name == "s__t":
                if partial:
                    responses.pop(next(iter(responses)))
                responses["other"] = reply({"message": "nobody"})
            self._send(ask, inputResponses=responses, requestState=suspended["requestState"])

    def _known(self) -> list[Ask]:
        return [ask for ask in self.asks if ask.states and ask.name == "s__t"]

    @precondition(lambda self: bool(self._known()))
    @rule(pick=PICKS, how=WRONG)
    def retry_wrongly(self, pick: int, how: str) -> None:
        """Send a retry that must be refused and must change nothing."""
        known = self._known()
        ask = known[pick % len(known)]
        state, keys = ask.states[-1], ["k"]
        if ask.suspended is not None:
            keys = list(ask.suspended["inputRequests"])
        elif how != "replayed":
            return
        answers: Any = {key: reply({"message": f"{ask.who}/wrong"}) for key in keys}
        retry_params = ask.members | {"inputResponses": answers, "requestState": state}
        if how == "replayed":
            retry_params["requestState"] = (
                ask.states[-2] if ask.suspended and ask.states[1:] else state
            )
            if ask.suspended and not ask.states[1:]:
                return
        elif how == "tampered":
            retry_params["requestState"] = state[:-2] + ("AA" if state[-2:] != "AA" else "BB")
        elif how == "other":
            retry_params["arguments"] = ask.members["arguments"] | {"steps": [9]}
        elif how == "unfit":
            retry_params["inputResponses"] = {key: {"action": "perhaps"} for key in keys}
        client = StatelessCaller(self.gateway, "stranger" if how == "stranger" else ask.principal)
        error = self.loop.run(client.expect_error("tools/call", name=ask.name, **retry_params))
        # Not known at all if its server is gone and has not been listed again.
        assert error.code in (-32602, 5030), (how, error)

    def _open(self) -> list["asyncio.Task[Any]"]:
        return [task for task in self.tasks if not task.done()]

    @precondition(lambda self: bool(self._open()))
    @rule(pick=PICKS)
    def hang_up(self, pick: int) -> None:
        """Close the stream of a waiting client."""
        waiting = self._open()
        waiting[pick % len(waiting)].cancel()
        self.loop.run_for(0.0)

    # Session clients

    @precondition(lambda self: bool(self.users))
    @rule(pick=PICKS, server=st.sampled_from("sse"), steps=STEPS)
    def converse(self, pick: int, server: str, steps: list[int]) -> None:
        pick %= len(self.users)
        who = self._who()
        self.owned[pick].add(who)
        self._do(self._check_progress(self.users[pick], server, who, steps))

    async def _check_progress(
        self, client: SessionClient, server: str, who: str, steps: list[int]
    ) -> None:
        try:
            result = await client.call(f"{server}__t", arguments={"who": who, "steps": steps})
        except RpcError:
            return
        assert result["structuredContent"]["who"] == who
        assert "resultType" not in result

    # Events during suspended calls

    @precondition(lambda self: bool(self._known()))
    @rule(pick=PICKS)
    def die(self, pick: int) -> None:
        """End a session of the asking server without notice."""
        living = [session for session in self.s.sessions if not session.dead]
        session = living[pick % len(living)]
        session.dead = True
        self.loop.run(session.channel.aclose())
        self.loop.run_for(0.1)

    @precondition(lambda self: bool(self._known()))
    @rule(seconds=st.sampled_from([1.0, 1.0, TIMEOUT, TTL / 2, TTL]))
    def wait(self, seconds: float) -> None:
        self.loop.run_for(seconds)

    @invariant()
    def every_tool_runs_once(self) -> None:
        assert all(count == 1 for count in (self.s.ran + self.e.ran).values())

    @invariant()
    def the_number_of_suspended_calls_is_limited(self) -> None:
        assert not hasattr(self, "gateway") or len(self.gateway.stateless.suspended_calls) <= 6

    def teardown(self) -> None:
        try:
            if hasattr(self, "gateway"):
                self.loop.run_for(3 * TTL)
                self._expect_idle()
                self.loop.run(self._end())
            left = [t for t in asyncio.all_tasks(self.loop) if not t.done()]
            assert left == []
            assert self.incidents == []
            for task in self.tasks:
                if not task.cancelled():
                    task.result()  # raises the failures of the task
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_for(9.0)
            asyncio.set_event_loop(None)
            self.loop.close()

    def _expect_idle(self) -> None:
        """No call waits, nothing is suspended or pending, and no session is in use."""
        assert all(task.done() for task in self.tasks)
        assert len(self.gateway.stateless.suspended_calls) == 0
        assert self.gateway.remapper.pending_count() == 1  # the subscription stream of e
        assert [now.in_flight for now in self.gateway.registry.snapshots()] == [0, 0]
        assert self.s.open == 0

    async def _end(self) -> None:
        for user in self.users:
            await user.__aexit__()
        await self.gateway.aclose()
        await asyncio.gather(*self.s.runs, *self.e.runs)
        assert self.s.violations == self.s.wrong == []


Questions.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestQuestions = Questions.TestCase
