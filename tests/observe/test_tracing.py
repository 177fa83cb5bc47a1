"""Calls become spans, as those who ask have it, and the server knows for which span it works."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.letters import EnvelopeServer, Paper, poster
from tests.gateway.servers import Server, one_tool, refuse, serving, tool, user
from tests.observe.test_otlp import attributes, read
from tests.transports.exchanges import asked
from trunkline.gateway.events import CallEnded, Event
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Incident, RpcError
from trunkline.observe.otlp import CLIENT, SERVER, encode, envelope
from trunkline.observe.tracing import Make, Tracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
RECORDED = f"00-{TRACE}-{SPAN}-01"
NOT_RECORDED = f"00-{TRACE}-{SPAN}-00"


class Book:
    """What was recorded."""

    def __init__(self, made: Gateway, sample: float = 0.0, **places: Any) -> None:
        self.taken: list[bytes] = []
        self.reports: list[Incident] = []
        self.events: list[Event] = []
        made.layers.tracer = Tracer(self._take, sample, places, self.reports.append, lambda: 0.5)

    def _take(self, make: Make) -> None:
        self.taken.append(encode(make()))

    @property
    def spans(self) -> list[Any]:
        return read(envelope(self.taken, {}, ("a", "b")))[2] if self.taken else []

    def pair(self) -> tuple[Any, Any]:
        server, client = self.spans
        assert (server.kind, client.kind) == (SERVER, CLIENT)
        return server, client


def meta_of(server: Server) -> Any:
    """Return the `_meta` of the last call that a server got."""
    return [params for method, params in server.heard if method == "tools/call"][-1].get("_meta")


@pytest.mark.holds("T99")
async def test_the_server_works_for_our_span_and_we_work_for_the_clients() -> None:
    echo = one_tool()
    async with serving(s=echo) as made, user(made) as client:
        book = Book(made, s={"network.transport": "pipe"})
        sent = {"traceparent": RECORDED, "tracestate": "a=1", "mine": 5}
        await client.call("s__echo", _meta=sent, arguments={"secret": "s3cret"})
    server, upstream = book.pair()
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
    assert b"s3cret" not in b"".join(book.taken)


async def test_what_a_span_says_is_what_the_conventions_have() -> None:
    async with serving(s=one_tool()) as made, user(made) as client:
        book = Book(made, 1.0, s={"network.transport": "pipe"})
        await client.call("s__echo")
    server, upstream = book.pair()
    said = attributes(server)
    assert len(said.pop("trunkline.call.id")) == 32
    assert said.pop("jsonrpc.request.id").isdigit()
    assert said == {
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
        (1.0, NOT_RECORDED, False),
        (0.0, RECORDED, True),
        (0.0, "nonsense", False),
        (1.0, "nonsense", True),
    ],
)
async def test_who_asks_decides_and_without_a_trace_a_share_begins_one(
    sample: float, given: str | None, recorded: bool
) -> None:
    echo = one_tool()
    async with serving(s=echo) as made, user(made) as client:
        book = Book(made, sample)
        sent = {} if given is None else {"_meta": {"traceparent": given, "tracestate": "x=y"}}
        await client.call("s__echo", **sent)
    assert len(book.taken) == (2 if recorded else 0)
    if not recorded:
        assert meta_of(echo) == sent.get("_meta")
    elif given != RECORDED:
        # A trace that begins here has nothing of another's state.
        server, upstream = book.pair()
        trace = server.trace_id.hex()
        assert meta_of(echo) == {"traceparent": f"00-{trace}-{upstream.span_id.hex()}-01"}
        assert trace != TRACE


async def test_without_tracing_what_came_goes_on_untouched() -> None:
    echo = one_tool()
    async with serving(s=echo) as made, user(made) as client:
        await client.call("s__echo", _meta={"traceparent": RECORDED})
    assert meta_of(echo) == {"traceparent": RECORDED}


class Http(Paper):
    """A line that came by HTTP."""

    def __init__(self, **headers: str) -> None:
        super().__init__()
        self.arrival = asked(**headers)


@pytest.mark.parametrize("server", [one_tool, lambda: EnvelopeServer(tools=[tool("echo")])])
async def test_the_headers_name_the_parent_if_nothing_else_does(
    server: Callable[[], Server],
) -> None:
    echo = server()
    async with serving(s=echo) as made:
        client, book = await poster(made), Book(made)
        line = Http(traceparent=RECORDED, tracestate="a=1", mcp_session_id="0815")
        await client.call("s__echo", line)
        inner, upstream = book.pair()
        assert (inner.trace_id.hex(), inner.parent_span_id.hex()) == (TRACE, SPAN)
        assert (inner.trace_state, upstream.trace_state) == ("a=1", "a=1")
        said = attributes(inner)
        assert said["network.transport"] == "tcp"
        assert said["client.address"] == "127.0.0.1"
        assert said["mcp.session.id"] == "0815"
        passed = meta_of(echo)
        assert passed["traceparent"] == f"00-{TRACE}-{upstream.span_id.hex()}-01"
        assert passed["tracestate"] == "a=1"


async def test_of_two_parents_the_message_has_the_right_one() -> None:
    async with serving(s=one_tool()) as made:
        client, book = await poster(made), Book(made)
        other = f"00-{'1' * 32}-{'2' * 16}-01"
        await client.call("s__echo", Http(traceparent=other), _meta={"traceparent": RECORDED})
        inner, _ = book.pair()
        assert (inner.trace_id.hex(), inner.parent_span_id.hex()) == (TRACE, SPAN)


@pytest.mark.parametrize("bad", ["é" * 30, "x" * 100])
async def test_a_header_that_is_none_begins_nothing(bad: str) -> None:
    async with serving(s=one_tool()) as made:
        client, book = await poster(made), Book(made)
        await client.call("s__echo", Http(traceparent=bad))
        assert book.taken == []


async def test_what_nobody_offers_is_one_span_without_a_name_of_its_own() -> None:
    async with serving(s=one_tool()) as made, user(made) as client:
        book = Book(made, 1.0)
        await client.refusal("tools/call", {"name": "s__" + "made up" * 200})
    (server,) = book.spans
    assert server.name == "tools/call"
    said = attributes(server)
    assert said["error.type"] == said["rpc.response.status_code"] == "-32602"
    assert len(said["gen_ai.tool.name"]) <= 256
    assert server.status.code == 0  # it is the client who got it wrong


async def test_a_failure_of_the_server_is_an_error_on_both_sides_without_its_words() -> None:
    echo = one_tool()
    echo.methods["tools/call"] = refuse(-32000, "s3cret is wrong")
    async with serving(s=echo) as made, user(made) as client:
        book = Book(made, 1.0)
        await client.refusal("tools/call", {"name": "s__echo"})
    for span in book.pair():
        assert attributes(span)["error.type"] == "-32000"
        assert span.status.code == 2
    assert b"s3cret" not in b"".join(book.taken)


async def test_a_tool_that_says_that_it_failed_is_an_error() -> None:
    echo = one_tool()
    echo.methods["tools/call"] = lambda params: {"content": [], "isError": True}
    async with serving(s=echo) as made, user(made) as client:
        book = Book(made, 1.0)
        await client.call("s__echo")
    for span in book.pair():
        assert attributes(span)["error.type"] == "tool_error"
        assert span.status.code == 2


async def test_prompts_and_resources_are_recorded_as_what_they_are() -> None:
    several = Server(prompts=[{"name": "p"}], resources=[{"uri": "db://x", "name": "x"}])
    several.methods["prompts/get"] = lambda params: {"messages": []}
    several.methods["resources/read"] = lambda params: {"contents": []}
    async with serving(s=several) as made, user(made) as client:
        book = Book(made, 1.0)
        await client.ask("prompts/get", {"name": "s__p"})
        await client.ask("resources/read", {"uri": "db://x?token=s3cret"})
        await client.ask("resources/read", {"uri": "db://u:s3cret@x"})
    prompt, _, resource, _, with_password, _ = book.spans
    assert (prompt.name, attributes(prompt)["gen_ai.prompt.name"]) == ("prompts/get s__p", "s__p")
    assert (resource.name, attributes(resource)["mcp.resource.uri"]) == ("resources/read", "db://x")
    assert attributes(with_password)["mcp.resource.uri"] == "db://[redacted]@x"
    assert "s3cret" not in repr(book.spans)


async def test_those_who_listen_learn_the_trace() -> None:
    events: list[Event] = []
    async with serving(s=one_tool()) as made, user(made) as client:
        book = Book(made, 1.0)
        made.layers.events.listen(events.append)
        await client.call("s__echo")
    (ended,) = (event for event in events if isinstance(event, CallEnded))
    server, _ = book.pair()
    assert ended.trace == f"00-{server.trace_id.hex()}-{server.span_id.hex()}-01"


async def test_a_span_that_cannot_be_recorded_harms_no_call() -> None:
    def refuse_it(_: object) -> None:
        raise RuntimeError("oops")

    reports: list[Incident] = []
    async with serving(s=one_tool()) as made, user(made) as client:
        made.layers.tracer = Tracer(refuse_it, 1.0, {}, reports.append)
        assert await client.call("s__echo")
    assert [str(report.error) for report in reports] == ["oops"]


async def test_a_meta_that_is_no_object_is_refused_as_ever() -> None:
    async with serving(s=one_tool()) as made, user(made) as client:
        Book(made, 1.0)
        refused: RpcError = await client.refusal("tools/call", {"name": "s__echo", "_meta": 5})
    assert refused.code == -32602
