"""Text and JSON-RPC responses, and the end of tasks."""

import asyncio
from typing import Any

import pytest

from tests.endpoints.exchanges import FakeExchange, make_context
from tests.tasks import tidy
from trunkline.endpoints.request_context import (
    MIN_UNCOPIED_BYTES,
    RETRY_AFTER_1_S,
    encode_response_parts,
    retry_after_header,
    wait_or_cancel,
)
from trunkline.jsonrpc import Incident, PendingResult, Raw, Request, Response, RpcError


async def test_every_response_has_the_common_headers() -> None:
    exchanges = [FakeExchange() for _ in range(4)]
    make_context(exchanges[0]).respond_text(404, "nothing", (b"allow", b"POST"))
    make_context(exchanges[1]).respond_error(429, RpcError(-1, "no"), 7, RETRY_AFTER_1_S)
    make_context(exchanges[2]).respond_json(200, b"{}")
    make_context(exchanges[3]).respond_accepted()
    assert all(exchange.headers[b"x-any"] == b"1" for exchange in exchanges)
    assert [exchange.status for exchange in exchanges] == [404, 429, 200, 202]
    assert exchanges[0].body == b"nothing\n"
    assert exchanges[0].headers[b"allow"] == b"POST"
    assert exchanges[1].json == {"jsonrpc": "2.0", "id": 7, "error": {"code": -1, "message": "no"}}
    assert exchanges[1].headers[b"retry-after"] == b"1"
    assert exchanges[2].json == {}
    assert exchanges[3].body == b""


def test_a_large_result_is_sent_without_a_copy() -> None:
    small, large = Raw(b'"%b"' % (b"x" * 100)), Raw(b'"%b"' % (b"x" * MIN_UNCOPIED_BYTES))
    reports: list[Incident] = []
    assert encode_response_parts(Request(1, "m"), small, reports.append)[1] == ()
    payload, rest = encode_response_parts(Request(1, "m"), large, reports.append)
    view = rest[0]
    assert isinstance(view, memoryview)
    assert view.obj is large
    assert b"".join((payload, *rest)) == Response(1, large).encode()


@tidy
async def test_tasks_may_finish_within_the_close_timeout() -> None:
    message: list[str] = []

    async def speak() -> None:
        await asyncio.sleep(0)
        message.append("last")

    stuck = asyncio.create_task(asyncio.Event().wait())
    call, never = PendingResult.from_awaitable(speak()), PendingResult()
    await wait_or_cancel([call, never], {asyncio.create_task(speak()), stuck}, 0.01)
    assert message == ["last", "last"]
    assert stuck.cancelled()
    assert isinstance(never.error, asyncio.CancelledError)
    await wait_or_cancel([], set(), 0.01)


@pytest.mark.parametrize(
    ("data", "header"),
    [
        ({"type": "rate_limited", "retryAfter": 30}, ((b"retry-after", b"30"),)),
        ({"retryAfter": 0.25}, ((b"retry-after", b"1"),)),
        ({"retryAfter": "soon"}, ()),
        ({}, ()),
        (["retryAfter"], ()),
    ],
)
def test_retry_after_in_an_error_becomes_a_header(
    data: Any, header: tuple[tuple[bytes, bytes], ...]
) -> None:
    assert retry_after_header(RpcError(-1, "no", data)) == header
