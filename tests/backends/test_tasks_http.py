"""Tasks of servers over HTTP: their headers, their streams, and their sessions."""

from typing import Any

import pytest

from tests.backends.test_envelope import Listener, a_call
from tests.backends.test_envelope import talk as talk_in_envelopes
from tests.backends.test_remote import Ear
from tests.backends.test_remote_sessions import talk
from tests.backends.test_tasks import DONE, RELATED, Worker, no_intervals
from tests.gateway.servers import tool
from tests.jsonrpc.test_channel import tidy
from tests.transports.faulty import Line
from tests.transports.web import (
    Asked,
    InTurn,
    Modern,
    Web,
    answers,
    fails,
    question,
    refuses,
    result,
    streams,
)
from trunkline.jsonrpc import ConnectionLost, from_raw
from trunkline.mcp.capabilities import TASKS
from trunkline.mcp.questions import ELICIT

__all__ = ["no_intervals"]


@tidy
async def test_headers_name_the_task_that_is_asked_about() -> None:
    web = Modern(tools=[tool("work")])
    web.capabilities["extensions"] = {TASKS: {}}
    refused: Any = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    web.reactions["tools/call"] = InTurn(
        fails(-32021, "no", refused, status="400 Bad Request"),
        answers({"resultType": "task", "taskId": "näme", "status": "working", "pollIntervalMs": 0}),
    )
    web.reactions["tasks/get"] = InTurn(
        refuses("503 Service Unavailable"),
        answers({"resultType": "complete", "status": "completed", "result": DONE}),
    )
    async with talk_in_envelopes(web, Listener()) as backend:
        assert from_raw(await backend.call(a_call({"name": "work"}), Ear())) == DONE
    for asked in web.of("tasks/get"):
        assert asked.header("mcp-method") == "tasks/get"
        assert asked.header("mcp-name") == "=?base64?bsOkbWU=?="
        assert asked.header("mcp-protocol-version") == "2026-07-28"
    assert len(web.of("tasks/get")) == len(web.of("tools/call")) == 2


@tidy
async def test_what_a_task_asks_on_the_stream_of_its_result_goes_to_its_client() -> None:
    web, ear = Web(tools=[tool("work", execution={"taskSupport": "required"})]), Ear()
    web.capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}
    web.reactions["tools/call"] = answers({"task": Worker.state("working")})
    cut = streams(question("q", ELICIT, {"_meta": {RELATED: {"taskId": "t1"}}}))
    web.reactions["tasks/result"] = InTurn(cut, streams(result(DONE)))
    web.reactions["tasks/get"] = answers(Worker.state("working"))
    web.reactions["answer"] = refuses("202 Accepted")
    async with talk(web, ear) as (backend, _):
        await backend.offers()
        assert from_raw(await backend.call(ear.call({"name": "work"}), ear)) == DONE
        assert (await web.until("answer")).message["result"] == {"by": "client"}
    assert len(web.of("tools/call")) == 1


@tidy
async def test_a_task_ends_with_the_session_that_it_belongs_to() -> None:
    web, ear = Web(tools=[tool("work", execution={"taskSupport": "required"})]), Ear()
    web.capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}

    async def create(line: Line, asked: Asked) -> None:
        await answers({"task": Worker.state("working")})(line, asked)
        web.sessions.clear()

    web.reactions["tools/call"] = create
    async with talk(web, ear) as (backend, _):
        await backend.offers()
        with pytest.raises(ConnectionLost):
            await backend.call(ear.call({"name": "work"}), ear)
    assert len(web.of("tools/call")) == 1
