"""Tasks of servers over HTTP: their headers, their streams, and their sessions."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import (
    FakeSessionServer,
    FakeStatelessServer,
    InSequence,
    ReceivedMessage,
    answers,
    fails,
    rejects,
    result,
    server_request,
    streams,
)
from tests.backends.test_session_renewal import connected_backend
from tests.backends.test_session_server import Recorder
from tests.backends.test_stateless_server import Listener, a_call
from tests.backends.test_stateless_server import connected_backend as stateless_backend
from tests.backends.test_tasks import DONE, NO_INTERVALS, RELATED, Worker
from tests.contexts import start_call
from tests.gateway.servers import tool
from tests.http.scripted_server import ScriptedConnection
from tests.tasks import tidy
from trunkline.jsonrpc import ConnectionLost, from_raw
from trunkline.mcp.capabilities import TASKS_EXTENSION
from trunkline.mcp.server_requests import ELICIT

LIMITS = replace(SHORT_LIMITS, poll_intervals=NO_INTERVALS)


@tidy
async def test_headers_name_the_task_of_a_request() -> None:
    web = FakeStatelessServer(tools=[tool("work")])
    web.capabilities["extensions"] = {TASKS_EXTENSION: {}}
    refused: Any = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
    web.reactions["tools/call"] = InSequence(
        fails(-32021, "no", refused, status="400 Bad Request"),
        answers({"resultType": "task", "taskId": "näme", "status": "working", "pollIntervalMs": 0}),
    )
    web.reactions["tasks/get"] = InSequence(
        rejects("503 Service Unavailable"),
        answers({"resultType": "complete", "status": "completed", "result": DONE}),
    )
    async with stateless_backend(web, Listener(), LIMITS) as backend:
        assert (
            from_raw(await start_call(backend, a_call({"name": "work"}, client=Recorder()))) == DONE
        )
    for asked in web.received_for("tasks/get"):
        assert asked.header("mcp-method") == "tasks/get"
        assert asked.header("mcp-name") == "=?base64?bsOkbWU=?="
        assert asked.header("mcp-protocol-version") == "2026-07-28"
    assert len(web.received_for("tasks/get")) == len(web.received_for("tools/call")) == 2


@tidy
async def test_a_tasks_question_on_its_result_stream_reaches_its_client() -> None:
    web, listener = (
        FakeSessionServer(tools=[tool("work", execution={"taskSupport": "required"})]),
        Recorder(),
    )
    web.capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}
    web.reactions["tools/call"] = answers({"task": Worker.state("working")})
    cut = streams(server_request("q", ELICIT, {"_meta": {RELATED: {"taskId": "t1"}}}))
    web.reactions["tasks/result"] = InSequence(cut, streams(result(DONE)))
    web.reactions["tasks/get"] = answers(Worker.state("working"))
    web.reactions["answer"] = rejects("202 Accepted")
    async with connected_backend(web, listener, LIMITS) as (backend, _):
        await backend.list_features()
        assert from_raw(await start_call(backend, listener.call({"name": "work"}))) == DONE
        assert (await web.wait_for("answer")).message["result"] == {"by": "client"}
    assert len(web.received_for("tools/call")) == 1


@tidy
async def test_a_task_ends_with_its_session() -> None:
    web, listener = (
        FakeSessionServer(tools=[tool("work", execution={"taskSupport": "required"})]),
        Recorder(),
    )
    web.capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}

    async def create(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await answers({"task": Worker.state("working")})(line, asked)
        web.sessions.clear()

    web.reactions["tools/call"] = create
    async with connected_backend(web, listener, LIMITS) as (backend, _):
        await backend.list_features()
        with pytest.raises(ConnectionLost):
            await start_call(backend, listener.call({"name": "work"}))
    assert len(web.received_for("tools/call")) == 1
