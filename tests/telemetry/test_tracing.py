"""Calls become spans as their callers ask for it, and servers see the trace context."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contexts import without_token
from tests.endpoints.exchanges import make_request
from tests.gateway.servers import Server, one_tool, refuse, serving, session_client, tool
from tests.gateway.stateless_callers import (
    RecordingStream,
    StatelessScriptedServer,
    stateless_caller,
)
from tests.telemetry.test_otlp import attributes, read
from trunkline.gateway.events import CallSummary, GatewayEvent
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Incident, RpcError
from trunkline.telemetry.otlp import CLIENT_KIND, SERVER_KIND, encode_export_request, encode_span
from trunkline.telemetry.tracing import (
    SpanFactory,
    TraceContext,
    Tracer,
    format_traceparent,
    parse_traceparent,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"


class SpanRecorder:
    """Collects recorded spans."""

    def __init__(self, made: Gateway, sample: float = 0.0, **addresses: Any) -> None:
        self.encoded: list[bytes] = []
        self.reports: list[Incident] = []
        self.events: list[GatewayEvent] = []
        made.pipeline.tracer = Tracer(
            self._add, sample, addresses, self.reports.append, lambda: 0.5
        )

    def _add(self, build: SpanFactory) -> None:
        self.encoded.append(encode_span(build()))

    @property
    def spans(self) -> list[Any]:
        return read(encode_export_request(self.encoded, {}, ("a", "b")))[2] if self.encoded else []

    def pair(self) -> tuple[Any, Any]:
        server, client = self.spans
        assert (server.kind, client.kind) == (SERVER_KIND, CLIENT_KIND)
        return server, client


def meta_of(server: Server) -> Any:
    """Return the `_meta` of the last call that a server got, without the progress token."""
    calls = [params for method, params in server.received if method == "tools/call"]
    return without_token(calls[-1]).get("_meta")


@pytest.mark.holds("T99")
async def test_client_span_is_a_child_of_the_server_span() -> None:
    echo = one_tool()
    async with serving(s=echo) as made, session_client(made) as client:
        recorder = SpanRecorder(made, s={"network.transport": "pipe"})
        sent = {"traceparent": SAMPLED, "tracestate": "a=1", "mine": 5}
        await client.call("s__echo", _meta=sent, arguments={"secret": "s3cret"})
    server, upstream = recorder.pair()
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, SPAN)
    assert (upstream.trace_id, upstream.parent_span_id) == (server.trace_id, server.span_id)
    assert meta_of(echo) == {
        "traceparent": f"00-{TRACE}-{upstream.span_id.hex()}-01",
        "tracestate": "a=1",
        "mine": 5,
    }
    assert server.name == upstream.name == "tools/call s__echo"
    assert server.flags == 0x301
    assert upstream.flags == 0x101
    assert server.start_time_unix_nano <= upstream.start_time_unix_nano
    assert upstream.end_time_unix_nano <= server.end_time_unix_nano + 1000
    assert b"s3cret" not in b"".join(recorder.encoded)


async def test_span_attributes_follow_the_conventions() -> None:
    async with serving(s=one_tool()) as made, session_client(made) as client:
        recorder = SpanRecorder(made, 1.0, s={"network.transport": "pipe"})
        await client.call("s__echo")
    server, upstream = recorder.pair()
    found = attributes(server)
    assert len(found.pop("trunkline.call.id")) == 32
    assert found.pop("jsonrpc.request.id").isdigit()
    assert found == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "s__echo",
        "mcp.protocol.version": "2025-11-25",
        "trunkline.backend": "s",
        "trunkline.status": "success",
    }
    assert attributes(upstream)["network.transport"] == "pipe"
    assert server.parent_span_id == b""
    assert server.status.code == upstream.status.code == 0


@pytest.mark.parametrize(
    ("sample", "given", "recorded"),
    [
        (1.0, None, True),
        (0.0, None, False),
        (1.0, UNSAMPLED, False),
        (0.0, SAMPLED, True),
        (0.0, "nonsense", False),
        (1.0, "nonsense", True),
    ],
)
async def test_caller_decides_on_sampling_and_others_are_sampled_at_the_rate(
    sample: float, given: str | None, recorded: bool
) -> None:
    echo = one_tool()
    async with serving(s=echo) as made, session_client(made) as client:
        recorder = SpanRecorder(made, sample)
        sent = {} if given is None else {"_meta": {"traceparent": given, "tracestate": "x=y"}}
        await client.call("s__echo", **sent)
    assert len(recorder.encoded) == (2 if recorded else 0)
    if not recorded:
        assert meta_of(echo) == sent.get("_meta")
    elif given != SAMPLED:
        # A trace that begins here has no state of another trace.
        server, upstream = recorder.pair()
        trace = server.trace_id.hex()
        assert meta_of(echo) == {"traceparent": f"00-{trace}-{upstream.span_id.hex()}-01"}
        assert trace != TRACE


async def test_without_tracing_params_are_forwarded_unchanged() -> None:
    echo = one_tool()
    async with serving(s=echo) as made, session_client(made) as client:
        await client.call("s__echo", _meta={"traceparent": SAMPLED})
    assert meta_of(echo) == {"traceparent": SAMPLED}


class HttpStream(RecordingStream):
    """A request stream over HTTP."""

    def __init__(self, **headers: str) -> None:
        super().__init__()
        self.http_request = make_request(**headers)


@pytest.mark.parametrize(
    "server", [one_tool, lambda: StatelessScriptedServer(tools=[tool("echo")])]
)
async def test_headers_name_the_parent_without_meta(
    server: Callable[[], Server],
) -> None:
    echo = server()
    async with serving(s=echo) as made:
        client, recorder = await stateless_caller(made), SpanRecorder(made)
        stream = HttpStream(traceparent=SAMPLED, tracestate="a=1", mcp_session_id="0815")
        await client.call("s__echo", stream)
        server_span, upstream = recorder.pair()
        assert (server_span.trace_id.hex(), server_span.parent_span_id.hex()) == (TRACE, SPAN)
        assert (server_span.trace_state, upstream.trace_state) == ("a=1", "a=1")
        found = attributes(server_span)
        assert found["network.transport"] == "tcp"
        assert found["client.address"] == "127.0.0.1"
        assert found["mcp.session.id"] == "0815"
        meta = meta_of(echo)
        assert meta["traceparent"] == f"00-{TRACE}-{upstream.span_id.hex()}-01"
        assert meta["tracestate"] == "a=1"


async def test_parent_in_meta_wins_over_headers() -> None:
    async with serving(s=one_tool()) as made:
        client, recorder = await stateless_caller(made), SpanRecorder(made)
        other = f"00-{'1' * 32}-{'2' * 16}-01"
        await client.call("s__echo", HttpStream(traceparent=other), _meta={"traceparent": SAMPLED})
        server_span, _ = recorder.pair()
        assert (server_span.trace_id.hex(), server_span.parent_span_id.hex()) == (TRACE, SPAN)


@pytest.mark.parametrize("bad", ["é" * 30, "x" * 100])
async def test_invalid_header_is_ignored(bad: str) -> None:
    async with serving(s=one_tool()) as made:
        client, recorder = await stateless_caller(made), SpanRecorder(made)
        await client.call("s__echo", HttpStream(traceparent=bad))
        assert recorder.encoded == []


async def test_unknown_tool_has_one_span_without_its_name() -> None:
    async with serving(s=one_tool()) as made, session_client(made) as client:
        recorder = SpanRecorder(made, 1.0)
        await client.expect_error("tools/call", {"name": "s__" + "invented" * 200})
    (server,) = recorder.spans
    assert server.name == "tools/call"
    found = attributes(server)
    assert found["error.type"] == found["rpc.response.status_code"] == "-32602"
    assert len(found["gen_ai.tool.name"]) <= 256
    assert server.status.code == 0  # a mistake of the client


async def test_server_failure_marks_both_spans_without_its_message() -> None:
    echo = one_tool()
    echo.methods["tools/call"] = refuse(-32000, "s3cret is wrong")
    async with serving(s=echo) as made, session_client(made) as client:
        recorder = SpanRecorder(made, 1.0)
        await client.expect_error("tools/call", {"name": "s__echo"})
    for span in recorder.pair():
        assert attributes(span)["error.type"] == "-32000"
        assert span.status.code == 2
    assert b"s3cret" not in b"".join(recorder.encoded)


async def test_tool_error_is_an_error() -> None:
    echo = one_tool()
    echo.methods["tools/call"] = lambda params: {"content": [], "isError": True}
    async with serving(s=echo) as made, session_client(made) as client:
        recorder = SpanRecorder(made, 1.0)
        await client.call("s__echo")
    for span in recorder.pair():
        assert attributes(span)["error.type"] == "tool_error"
        assert span.status.code == 2


async def test_prompts_and_resources_have_their_attributes() -> None:
    several = Server(prompts=[{"name": "p"}], resources=[{"uri": "db://x", "name": "x"}])
    several.methods["prompts/get"] = lambda params: {"messages": []}
    several.methods["resources/read"] = lambda params: {"contents": []}
    async with serving(s=several) as made, session_client(made) as client:
        recorder = SpanRecorder(made, 1.0)
        await client.ask("prompts/get", {"name": "s__p"})
        await client.ask("resources/read", {"uri": "db://x?token=s3cret"})
        await client.ask("resources/read", {"uri": "db://u:s3cret@x"})
    prompt, _, resource, _, with_password, _ = recorder.spans
    assert (prompt.name, attributes(prompt)["gen_ai.prompt.name"]) == ("prompts/get s__p", "s__p")
    assert (resource.name, attributes(resource)["mcp.resource.uri"]) == ("resources/read", "db://x")
    assert attributes(with_password)["mcp.resource.uri"] == "db://[redacted]@x"
    assert "s3cret" not in repr(recorder.spans)


async def test_listeners_see_the_trace() -> None:
    events: list[GatewayEvent] = []
    async with serving(s=one_tool()) as made, session_client(made) as client:
        recorder = SpanRecorder(made, 1.0)
        made.pipeline.events.add_listener(events.append)
        await client.call("s__echo")
    (summary,) = (event for event in events if isinstance(event, CallSummary))
    server, _ = recorder.pair()
    assert summary.traceparent == f"00-{server.trace_id.hex()}-{server.span_id.hex()}-01"


async def test_failing_span_does_not_affect_the_call() -> None:
    def fail(_: object) -> None:
        raise RuntimeError("oops")

    reports: list[Incident] = []
    async with serving(s=one_tool()) as made, session_client(made) as client:
        made.pipeline.tracer = Tracer(fail, 1.0, {}, reports.append)
        assert await client.call("s__echo")
    assert [str(report.error) for report in reports] == ["oops"]


async def test_meta_that_is_not_an_object_is_refused() -> None:
    async with serving(s=one_tool()) as made, session_client(made) as client:
        SpanRecorder(made, 1.0)
        refused: RpcError = await client.expect_error("tools/call", {"name": "s__echo", "_meta": 5})
    assert refused.code == -32602


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-is-like", True),
    ],
)
def test_valid_traceparent_is_parsed(text: str, sampled: bool) -> None:
    assert parse_traceparent(text) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01.",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_invalid_traceparent_is_rejected(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.text())
def test_any_text_yields_a_context_or_none(text: str) -> None:
    assert parse_traceparent(text) is None or len(text) >= 55


def test_formatted_traceparent_is_parsed_again() -> None:
    assert parse_traceparent(format_traceparent(TRACE, SPAN)) == TraceContext(TRACE, SPAN, True)
