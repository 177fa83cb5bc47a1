"""The call pipeline: every call is checked before it is sent, and ends once."""

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tests.gateway.servers import (
    HeldAnswer,
    Server,
    make_gateway,
    running,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import RecordingStream, stateless_caller
from tests.gateway.test_call_context import ENTRY, make_context
from tests.tasks import hang_guard
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.decision_cache import CallerRules, Route
from trunkline.gateway.events import CALL_EVENT_BATCH, CallSummary, EventBus, GatewayEvent
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.pipeline import CallCheck, Denied, Pipeline
from trunkline.jsonrpc import ConnectionLost, PendingResult, Raw, Request, RpcError
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.catalog import CatalogEntry


class ScriptedEnforcer:
    """An enforcer with scripted results."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.response: Raw | None = None
        self.error: RpcError | None = None
        self.releases = 0

    def is_visible(self, caller: Caller, entry: CatalogEntry) -> bool:
        return True

    def rules_for(self, caller: Caller, entry: CatalogEntry) -> CallerRules:
        return CallerRules()

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: object,
        *,
        wrapper: object = None,
        is_counted: bool = False,
    ) -> tuple[CallCheck, ...]:
        return (self._check_again if is_counted else self._check,)

    def _check(self, context: CallContext) -> Denied | None:
        self.checked.append(context.name)
        context.on_finish += (self._release,)
        if self.error is not None:
            raise self.error
        return None if self.response is None else Denied(result=self.response)

    def check_without_arguments(self, caller: Caller, entry: CatalogEntry) -> None:
        """Allow everything."""

    def _check_again(self, context: CallContext) -> Denied | None:
        self.checked.append(f"again: {context.name}")
        if self.error is not None:
            raise self.error
        return None if self.response is None else Denied(result=self.response)

    def check_disabled(self, caller: Caller, entry: CatalogEntry) -> None:
        """Disable nothing."""

    def hiding_rule(self, caller: Caller, entry: CatalogEntry) -> str | None:
        return None

    def allows_passthrough(self, caller: Caller, backend: str) -> bool:
        return False

    def count_unknown(self, caller: Caller) -> None:
        """Count nothing."""

    def count_request(self, caller: Caller) -> None:
        """Count nothing."""

    def may_send(self, caller: Caller, backend: str) -> bool:
        return True

    def may_receive(self, caller: Caller | None, backend: str) -> bool:
        return True

    def _release(self, *_: object) -> None:
        self.releases += 1


def record_calls(gateway: Gateway) -> list[CallSummary]:
    summaries: list[CallSummary] = []

    def record_summary(event: GatewayEvent) -> None:
        if isinstance(event, CallSummary):
            summaries.append(event)

    gateway.pipeline.events.add_listener(record_summary)
    return summaries


def send(pipeline: Pipeline, context: CallContext, answer: PendingResult) -> None:
    """Execute a call at a fake upstream that returns `answer`."""
    upstream = Mock(revision=None, call=Mock(return_value=answer))
    pipeline.execute(context, Route(ENTRY, upstream))


def make_server() -> Server:
    return Server(tools=[tool("n")], prompts=[{"name": "p"}])


async def test_without_listeners_no_call_is_recorded() -> None:
    server = make_server()
    gateway = make_gateway(a=server)
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        await client.call("a__n")
        assert gateway.pipeline.in_flight == set()


async def test_listeners_receive_every_call_once() -> None:
    server = make_server()
    gateway = make_gateway(a=server)
    summaries = record_calls(gateway)
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        await client.call("a__n")
        await client.ask("prompts/get", name="a__p")
        await client.expect_error("tools/call", name="none")
        await client.ask("tools/list")
    assert [
        (summary.method, summary.name, summary.backend, summary.status) for summary in summaries
    ] == [
        ("tools/call", "a__n", "a", "success"),
        ("prompts/get", "a__p", "a", "success"),
        ("tools/call", "none", None, "unknown"),
    ]
    assert len({summary.id for summary in summaries}) == 3
    assert summaries[0].backend_revision is V2025_11_25
    assert gateway.pipeline.in_flight == set()


async def test_a_refused_call_is_not_sent_and_releases_its_resources() -> None:
    server, enforcer = make_server(), ScriptedEnforcer()
    gateway = make_gateway(a=server)
    gateway.pipeline.enforcer, summaries = enforcer, record_calls(gateway)
    enforcer.error = gateway_error(ErrorKind.NOT_ALLOWED, "no")
    async with running(gateway, server), session_client(gateway) as client:
        with pytest.raises(RpcError, match="no"):
            await client.call("a__n")
    assert server.count("tools/call") == 0
    assert (enforcer.checked, enforcer.releases) == (["a__n"], 1)
    assert [summary.status for summary in summaries] == ["denied"]


def test_a_request_that_mcp_does_not_define_ends_even_if_it_cannot_be_sent() -> None:
    pipeline, context, finished = Pipeline(), make_context(), list[BaseException | None]()

    def finish(_: CallContext, __: object, error: BaseException | None) -> None:
        finished.append(error)

    def fail(context: CallContext) -> PendingResult:
        context.on_finish += (finish,)
        raise ConnectionLost("it ended")

    with pytest.raises(ConnectionLost):
        pipeline.pass_through(context, Mock(call=fail))
    assert [str(error) for error in finished] == ["it ended"]
    assert pipeline.in_flight == set()


def test_a_call_whose_answer_cannot_be_rewritten_is_recorded_as_failed() -> None:
    pipeline, summaries, answer = Pipeline(), list[GatewayEvent](), PendingResult()
    pipeline.events.add_listener(summaries.append)

    def fail(_: PendingResult) -> None:
        raise ValueError("broken")

    upstream = Mock(revision=None, call=Mock(return_value=answer))
    pipeline.execute(make_context(), Route(ENTRY, upstream, rewrite_answer=fail))
    answer.set_result(Raw(b"{}"))
    pipeline.events.flush()
    assert [event.status for event in summaries if isinstance(event, CallSummary)] == ["error"]


async def test_a_call_of_an_unknown_tool_is_not_checked() -> None:
    server, enforcer = make_server(), ScriptedEnforcer()
    gateway = make_gateway(a=server)
    gateway.pipeline.enforcer = enforcer
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        assert (await client.expect_error("tools/call", name="a__x")).code == -32602
    assert enforcer.checked == []


async def test_the_enforcer_may_answer_instead_of_the_server() -> None:
    server, enforcer = make_server(), ScriptedEnforcer()
    gateway = make_gateway(a=server)
    gateway.pipeline.enforcer, summaries = enforcer, record_calls(gateway)
    enforcer.response = Raw(b'{"content":[{"type":"text","text":"no such path"}],"isError":true}')
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        answer = await client.call("a__n")
    assert text_of(answer) == "no such path"
    assert server.count("tools/call") == 0
    assert [(summary.status, summary.upstream_duration) for summary in summaries] == [
        ("tool_error", 0.0)
    ]


async def test_a_stopped_call_gets_the_reason_and_is_cancelled_at_the_server() -> None:
    server, hold = make_server(), HeldAnswer()
    gateway = make_gateway(a=server)
    server.methods["tools/call"] = hold
    summaries = record_calls(gateway)
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        call_task = asyncio.create_task(client.call("a__n"))
        await hold.started.wait()
        pipeline = gateway.pipeline
        why = gateway_error(ErrorKind.DISABLED, "disabled")
        assert pipeline.cancel_matching(lambda context: context.name == "b__n", lambda _: why) == 0
        assert pipeline.cancel_matching(lambda context: context.name == "a__n", lambda _: why) == 1
        with pytest.raises(RpcError, match="disabled"):
            await call_task
        await server.wait_received("notifications/cancelled")
        assert pipeline.in_flight == set()
    assert [summary.status for summary in summaries] == ["disabled"]


async def test_a_call_cancelled_by_its_client_is_recorded() -> None:
    server, hold = make_server(), HeldAnswer()
    gateway = make_gateway(a=server)
    server.methods["tools/call"] = hold
    summaries = record_calls(gateway)
    async with hang_guard(), running(gateway, server):
        client = await stateless_caller(gateway)
        call_task = asyncio.create_task(client.call("a__n"))
        await hold.started.wait()
        call_task.cancel()
        await asyncio.gather(call_task, return_exceptions=True)
        await server.wait_received("notifications/cancelled")
    assert [summary.status for summary in summaries] == ["cancelled"]


UNREADABLE = (
    b'{"name":"a__n","name":"a__x","arguments":{}}',
    b'{"name":"a__n","arguments":{},"arguments":{"b":1}}',
    b'["a__n"]',
)


@pytest.mark.parametrize("params", UNREADABLE)
async def test_a_call_with_unreadable_params_is_recorded(params: bytes) -> None:
    server = make_server()
    gateway = make_gateway(a=server)
    summaries = record_calls(gateway)
    async with running(gateway, server), session_client(gateway) as client:
        for method in ("tools/call", "prompts/get", "resources/read", "completion/complete"):
            with pytest.raises(RpcError, match="Invalid params"):
                await client.connection.call(method, Raw(params))
        with pytest.raises(RpcError, match="Invalid params"):
            await client.connection.call("tools/list", Raw(params))
    assert [(summary.method, summary.status, summary.error_code) for summary in summaries] == [
        ("tools/call", "error", -32602),
        ("prompts/get", "error", -32602),
        ("resources/read", "error", -32602),
        ("completion/complete", "error", -32602),
    ]
    assert gateway.pipeline.in_flight == set()


@pytest.mark.parametrize("params", UNREADABLE)
async def test_a_stateless_call_with_unreadable_params_is_recorded(params: bytes) -> None:
    gateway = make_gateway()
    summaries, why = record_calls(gateway), RpcError.invalid_params("no")
    for method in ("tools/call", "tools/list", "vendor/x"):
        request = Request(7, method, Raw(params))
        assert gateway.refuse_unreadable(request, Principal("anna"), RecordingStream(), why) is why
    assert [
        (summary.method, summary.status, summary.principal.subject) for summary in summaries
    ] == [("tools/call", "error", "anna")]
    gateway.pipeline.events = EventBus()
    request = Request(7, "tools/call", Raw(params))
    assert (
        gateway.refuse_unreadable(request, Principal("anna"), RecordingStream(), why) is why
    )  # no listeners


async def test_unknown_methods_pass_only_without_an_enforcer() -> None:
    server = make_server()
    gateway = make_gateway(a=server)
    async with running(gateway, server), session_client(gateway) as client:
        await client.ask("vendor/x", {})
        gateway.pipeline.enforcer = ScriptedEnforcer()
        with pytest.raises(RpcError, match="Method not found"):
            await client.ask("vendor/x", {})


async def test_responses_are_sent_before_events_and_events_keep_their_order() -> None:
    server, scheduled = make_server(), list[Callable[[], None]]()
    gateway = make_gateway(a=server)
    summaries = record_calls(gateway)
    gateway.pipeline.events.schedule = lambda _, flush: scheduled.append(flush)
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        await client.call("a__n")
        await client.ask("prompts/get", name="a__p")
        assert gateway.pipeline.in_flight == set()  # both calls have ended
        assert (len(scheduled), summaries) == (1, [])  # but no event was delivered
        scheduled.pop()()
        assert [summary.method for summary in summaries] == ["tools/call", "prompts/get"]
        await client.call("a__n")
        assert (len(scheduled), len(summaries)) == (1, 2)
        for _ in range(CALL_EVENT_BATCH - 1):
            await client.call("a__n")
        assert (len(scheduled), len(summaries)) == (2, 2)
        scheduled.pop()()
        assert len(summaries) == 2 + CALL_EVENT_BATCH  # a full batch is delivered at once
        await client.call("a__n")
        await client.expect_error("tools/call", name="none")
        assert len(summaries) == 2 + CALL_EVENT_BATCH  # refused calls are delayed as well
        scheduled.pop()()
        assert [summary.status for summary in summaries[-2:]] == [
            "success",
            "unknown",
        ]  # in order
        await client.call("a__n")
    assert len(summaries) == 5 + CALL_EVENT_BATCH  # closing delivers the rest


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
def test_the_summary_of_a_call_is_built_when_its_event_is_delivered(
    result: object, error: RpcError | None, status: str
) -> None:
    pipeline, scheduled, summaries = Pipeline(), list[Callable[[], None]](), list[GatewayEvent]()
    context, answer, finished = make_context(entry=ENTRY), PendingResult(), list[str]()
    pipeline.events.schedule = lambda _, flush: scheduled.append(flush)
    pipeline.register(context)
    context.on_finish = (lambda _c, _r, _e: finished.append("left"),)
    pipeline.events.add_listener(summaries.append)
    send(pipeline, context, answer)
    answer.error = error
    answer.set_result(result)
    pipeline.finish(context, None, OSError())  # a second end is ignored
    assert (pipeline.in_flight, finished, pipeline.events.pending_count) == (set(), ["left"], 1)
    scheduled.pop()()
    (summary,) = summaries
    assert isinstance(summary, CallSummary)
    assert (summary.status, summary.error_code) == (status, None if error is None else 1)
    assert summary.upstream_duration <= summary.duration
    assert summary.response_bytes == (len(result) if isinstance(result, Raw) else 0)
    assert pipeline.events.pending_count == 0


def test_the_span_of_a_call_starts_once_also_if_it_waited() -> None:
    pipeline, early, later, answer = (
        Pipeline(),
        make_context(entry=ENTRY),
        make_context(entry=ENTRY),
        PendingResult(),
    )
    pipeline.tracer = tracer = Mock()
    pipeline.register(early)
    send(pipeline, early, answer)
    send(pipeline, later, answer)
    assert [call.args[0] for call in tracer.start_span.call_args_list] == [early, later]
    assert pipeline.in_flight == {early, later}


def test_stopping_a_call_answers_it_with_the_reason() -> None:
    pipeline, why = Pipeline(), gateway_error(ErrorKind.DISABLED, "disabled")
    early, sent = make_context(entry=ENTRY), make_context(entry=ENTRY)
    pipeline.register(early)
    answer = PendingResult()
    send(pipeline, sent, answer)
    assert pipeline.cancel_matching(lambda _: True, lambda _: why) == 2
    assert (early.disabled_error, answer.error) == (why, why)  # not started yet, and sent
    assert pipeline.in_flight == {early}


def test_a_successful_call_is_not_recorded_if_listeners_want_only_failures() -> None:
    pipeline, summaries = Pipeline(), list[GatewayEvent]()
    context, answer = make_context(entry=ENTRY), PendingResult()
    pipeline.events.add_listener(summaries.append, call_filter="failed")
    send(pipeline, context, answer)
    answer.set_result(Raw(b"{}"))
    assert (pipeline.in_flight, pipeline.events.pending_count, summaries) == (set(), 0, [])
