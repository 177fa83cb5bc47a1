"""The context of a call: its status, its name, its durations and its cleanup."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from trunkline.gateway.call_context import (
    CallContext,
    error_code_and_kind,
    is_tool_error,
    read_traceparent,
    status_of,
)
from trunkline.gateway.events import STATUSES
from trunkline.jsonrpc import UNSET, Raw, Request, RpcError, to_raw
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_06_18, V2025_11_25
from trunkline.routing.catalog import CatalogEntry

LONG = b"x" * 20_000
ENTRY = CatalogEntry(FeatureKind.TOOL, "a__b", "a", "b", Raw(b"{}"))


def make_context(**members: Any) -> CallContext:
    caller = Caller(LOCAL_PRINCIPAL, V2025_11_25, {}, Raw(b'{"name":"c"}'))
    request = members.pop("request", Request(7, "tools/call", Raw(b'{"name":"a__b"}')))
    client, params = Mock(caller=caller), Params(Raw(b"{}"))
    method = CLIENT_REQUESTS[request.method]
    return CallContext(
        caller,
        request,
        method,
        params,
        client,
        sequence=7,
        wall_time=100.0,
        started_at=1.0,
        **members,
    )


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
        (None, gateway_error(ErrorKind.DISABLED, ""), ENTRY, "disabled"),
        (None, gateway_error(ErrorKind.RATE_LIMITED, ""), ENTRY, "rate_limited"),
        (None, gateway_error(ErrorKind.NOT_ALLOWED, ""), ENTRY, "denied"),
        (None, gateway_error(ErrorKind.UPSTREAM_TIMEOUT, ""), ENTRY, "timeout"),
        (None, gateway_error(ErrorKind.UPSTREAM_UNAVAILABLE, ""), ENTRY, "unavailable"),
    ],
)
def test_every_outcome_of_a_call_has_a_status(
    result: Any, error: BaseException | None, entry: CatalogEntry | None, status: str
) -> None:
    _, kind = error_code_and_kind(error)
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
def test_a_tool_error_is_detected_in_results_of_any_size(result: bytes, failed: bool) -> None:
    assert is_tool_error(Raw(result)) is failed


def test_error_code_and_kind_are_read_from_the_error() -> None:
    assert error_code_and_kind(gateway_error(ErrorKind.DISABLED, "")) == (-32005, "disabled")
    assert error_code_and_kind(RpcError(5, "", b'{"type":"disabled"}')) == (5, None)
    assert error_code_and_kind(RpcError(5, "", {"type": 5})) == (5, None)
    assert error_code_and_kind(None) == (None, None)


def test_the_traceparent_is_read_from_meta() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert read_traceparent(to_raw({"_meta": {"traceparent": trace}})) == trace
    for wrong in (None, 5, "x" * 100):
        assert read_traceparent(to_raw({"_meta": {"traceparent": wrong}})) is None
    for params in (b"{}", b'{"_meta":["traceparent"]}', b'{"traceparent":"x"}'):
        assert read_traceparent(Raw(params)) is None
    assert read_traceparent(UNSET) is None


def test_the_text_of_a_call_shows_neither_arguments_nor_client() -> None:
    context = make_context(entry=ENTRY, arguments=Raw(b'{"password":"secret"}'), id_prefix="x")
    assert repr(context) == "CallContext(id='x7', method='tools/call', name='a__b')"


class HookLog:
    """Finish hooks that note their name and the outcome of the call."""

    def __init__(self) -> None:
        self.found: list[tuple[str, object, BaseException | None]] = []

    def first(self, context: CallContext, result: object, error: BaseException | None) -> None:
        self.found.append(("first", result, error))

    def second(self, context: CallContext, result: object, error: BaseException | None) -> None:
        self.found.append(("second", result, error))


def test_finish_hooks_run_once_in_order_with_the_outcome() -> None:
    log, context, error = HookLog(), make_context(), RpcError(1, "no")
    context.on_finish += (log.first, log.second)
    assert context.finish(None, error) == []
    assert context.finish(Raw(b"{}"), None) == []
    assert log.found == [("first", None, error), ("second", None, error)]


@pytest.mark.parametrize(
    "failure", [ValueError("broken"), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()]
)
def test_a_finish_hook_that_raises_keeps_no_other_from_running(failure: BaseException) -> None:
    def fail(*_: object) -> None:
        raise failure

    log, context = HookLog(), make_context()
    context.on_finish += (log.first, fail, log.second)
    assert context.finish("result", None) == [failure]
    assert [name for name, _, _ in log.found] == ["first", "second"]


def test_a_summary_has_total_and_upstream_durations() -> None:
    context = make_context(
        entry=ENTRY, sent_at=1.5, answered_at=3.5, rule="r", backend_revision=V2025_06_18
    )
    summary = context.summarize(4.0, Raw(b"{}"), None)
    assert (summary.duration, summary.upstream_duration, summary.wall_time) == (3.0, 2.0, 100.0)
    assert (summary.backend, summary.backend_revision, summary.rule) == ("a", V2025_06_18, "r")
    assert (summary.request_id, summary.method, summary.name) == (7, "tools/call", "a__b")
    assert (summary.request_bytes, summary.response_bytes, summary.revision) == (
        15,
        2,
        V2025_11_25,
    )
    assert make_context(sent_at=2.0).summarize(4.0, None, OSError()).upstream_duration == 2.0
    early = make_context(status="invalid_arguments").summarize(1.25, {}, None)
    assert early.response_bytes == 0  # not encoded yet
    assert (early.upstream_duration, early.backend, early.status) == (
        0.0,
        None,
        "invalid_arguments",
    )


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
def test_an_unknown_feature_is_recorded_by_the_name_the_client_used(
    params: bytes, name: str
) -> None:
    context = make_context(request=Request(7, "tools/call", Raw(params)))
    assert context.name == context.summarize(2.0, None, None).name == name
    assert make_context(entry=ENTRY, request=context.request).name == "a__b"
    assert make_context(request=Request(7, "tools/call")).name == ""


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
def test_the_recorded_name_depends_on_the_method(method: str, params: bytes, name: str) -> None:
    assert make_context(request=Request(7, method, Raw(params))).name == name


def test_a_wrapped_tool_call_is_recorded_by_the_name_of_the_wrapped_tool() -> None:
    assert make_context(wrapped_tool="c__d").name == "c__d"
    assert make_context(wrapped_tool="").name == ""
