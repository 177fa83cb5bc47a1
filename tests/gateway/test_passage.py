"""One call on its way: what it is taken for in the end, and that what it took is given back."""

import asyncio
from typing import Any

import pytest

from trunkline.gateway.events import STATUSES
from trunkline.gateway.passage import (
    Passage,
    code_and_kind,
    says_it_failed,
    status_of,
    trace_of,
)
from trunkline.jsonrpc import UNSET, Raw, Request, RpcError, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import LOCAL
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing.catalog import Entry

LONG = b"x" * 20_000
ENTRY = Entry(Kind.TOOL, "a__b", "a", "b", Raw(b"{}"))


def passage(**members: Any) -> Passage:
    caller = Caller(LOCAL, "2025-11-25", {}, Raw(b'{"name":"c"}'))
    request = members.pop("request", Request(7, "tools/call", Raw(b'{"name":"a__b"}')))
    return Passage(caller, request, number=7, at=100.0, began=1.0, **members)


@pytest.mark.parametrize(
    ("result", "error", "entry", "status"),
    [
        (Raw(b'{"content":[]}'), None, ENTRY, "success"),
        (Raw(b'{"content":[],"isError":true}'), None, ENTRY, "tool_error"),
        (Raw(b'{"content":[],"isError": false}'), None, ENTRY, "success"),
        ({}, None, ENTRY, "success"),
        (None, asyncio.CancelledError(), ENTRY, "cancelled"),
        (None, RpcError(-32602, "Unknown tool: x"), None, "unknown"),
        (None, RpcError(1, "theirs"), ENTRY, "error"),
        (None, RpcError(1, "theirs", {"type": "never heard of"}), ENTRY, "error"),
        (None, OSError(), None, "error"),
        (None, refuse(Refusal.DISABLED, ""), ENTRY, "disabled"),
        (None, refuse(Refusal.RATE_LIMITED, ""), ENTRY, "rate_limited"),
        (None, refuse(Refusal.NOT_ALLOWED, ""), ENTRY, "denied"),
        (None, refuse(Refusal.UPSTREAM_TIMEOUT, ""), ENTRY, "timeout"),
        (None, refuse(Refusal.UPSTREAM_UNAVAILABLE, ""), ENTRY, "unavailable"),
    ],
)
def test_every_end_has_a_status(
    result: Any, error: BaseException | None, entry: Entry | None, status: str
) -> None:
    _, kind = code_and_kind(error)
    assert status_of(result, error, kind, entry) == status
    assert status in STATUSES


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (b'{"isError":true}', True),
        (b'{"isError" : true, "content":["' + LONG + b'"]}', True),
        (b'{"content":["' + LONG + b'"],"isError":true}', True),
        (b'{"content":["' + LONG + b'"],"isError":true,"structuredContent":"' + LONG + b'"}', True),
        (
            b'{"content":["' + LONG + b'"],"isError":false,"structuredContent":"' + LONG + b'"}',
            False,
        ),
        (b'{"content":["' + LONG + b'"],"structuredContent":{"isError":true}}', False),
        (b'{"content":["' + LONG + rb'{\"isError\":true}"]}', False),
        (b'{"content":["' + 5 * LONG + b'"],"isError":true}', True),
        (b'{"isError":true,"content":["' + 5 * LONG + b'"]}', True),
        (b'{"content":["isError:true"]}', False),
        (b'{"structuredContent":{"isError":true}}', False),
        (b'{"isError":"true"}', False),
        (b'{"content":["' + LONG + b'"]}', False),
    ],
)
def test_a_tool_says_itself_that_it_failed(result: bytes, failed: bool) -> None:
    assert says_it_failed(Raw(result)) is failed


def test_what_it_was_answered_with_is_known() -> None:
    assert code_and_kind(refuse(Refusal.DISABLED, "")) == (-32005, "disabled")
    assert code_and_kind(RpcError(5, "", b'{"type":"disabled"}')) == (5, None)
    assert code_and_kind(RpcError(5, "", {"type": 5})) == (5, None)
    assert code_and_kind(None) == (None, None)


def test_the_trace_that_it_belongs_to_comes_with_it() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert trace_of(to_raw({"_meta": {"traceparent": trace}})) == trace
    for wrong in (None, 5, "x" * 100):
        assert trace_of(to_raw({"_meta": {"traceparent": wrong}})) is None
    for params in (b"{}", b'{"_meta":["traceparent"]}', b'{"traceparent":"x"}'):
        assert trace_of(Raw(params)) is None
    assert trace_of(UNSET) is None


def test_what_it_took_is_given_back_once() -> None:
    given: list[int] = []
    one = passage()
    one.leaving += (lambda: given.append(1), lambda: given.append(2))
    one.leave()
    one.leave()
    assert given == [1, 2]


def test_its_time_is_divided_between_us_and_the_backend() -> None:
    one = passage(entry=ENTRY, sent=1.5, answered=3.5, rule="r", revision="2025-06-18")
    end = one.ended(4.0, Raw(b"{}"), None)
    assert (end.total, end.upstream, end.at) == (3.0, 2.0, 100.0)
    assert (end.backend, end.backend_revision, end.rule) == ("a", "2025-06-18", "r")
    assert (end.request_id, end.method, end.name) == (7, "tools/call", "a__b")
    assert (end.bytes_in, end.bytes_out, end.revision) == (15, 2, "2025-11-25")
    assert passage(sent=2.0).ended(4.0, None, OSError()).upstream == 2.0
    early = passage(status="invalid_arguments").ended(1.25, {}, None)
    assert early.bytes_out == 0  # what is not written yet
    assert (early.upstream, early.backend, early.status) == (0.0, None, "invalid_arguments")


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (b'{"name":"a","uri":"b"}', "a"),
        (b'{"uri":"b:c"}', "b:c"),
        (b'{"name":5}', ""),
        (b'{"name":{"name":"a"}}', ""),
        (b"[]", ""),
        (b"{}", ""),
        (b'{"name":' + b"[" * 5000, ""),
    ],
)
def test_what_nobody_offers_is_called_what_the_client_called_it(params: bytes, name: str) -> None:
    one = passage(request=Request(7, "tools/call", Raw(params)))
    assert one.name == one.ended(2.0, None, None).name == name
    assert passage(entry=ENTRY, request=one.request).name == "a__b"
    assert passage(request=Request(7, "tools/call")).name == ""


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("resources/read", b'{"uri":"b:c","name":"a"}', "b:c"),
        ("resources/read", b'{"uri":5,"name":"a"}', ""),
        ("completion/complete", b'{"ref":{"type":"ref/prompt","name":"a","uri":"b:c"}}', "a"),
        ("completion/complete", b'{"ref":{"type":"ref/resource","uri":"b:{c}"}}', "b:{c}"),
        ("completion/complete", b'{"ref":{"type":"ref/resource"}}', ""),
        ("completion/complete", b'{"ref":5,"name":"a"}', ""),
        ("completion/complete", b'{"ref":{"type":"ref/prompt","name":"a"},"name":"b"}', "a"),
        ("completion/complete", b'{"name":"a"}', "a"),
        ("completion/complete", b"{}", ""),
        ("tools/call", b'{"name":"a","ref":5}', "a"),
    ],
)
def test_what_counts_for_a_method_is_what_it_is_called(
    method: str, params: bytes, name: str
) -> None:
    assert passage(request=Request(7, method, Raw(params))).name == name


def test_what_was_asked_for_by_way_of_another_is_what_it_is_called() -> None:
    assert passage(asked="c__d").name == "c__d"
    assert passage(asked="").name == ""
