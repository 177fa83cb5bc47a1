"""Spans reach a real OTLP endpoint over HTTP, and no collector stops a call."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from tests.observe.test_otlp import attributes, read
from tests.test_app_http import HERE, call_in_session, call_modern
from trunkline import __version__
from trunkline.app import DEFAULT, App
from trunkline.assembly.traces import TURN, Traces, endpoint_of, place_of
from trunkline.config import Config, ServerSettings, TracesSettings
from trunkline.jsonrpc import Incident, print_incident
from trunkline.observe.exporter import Delivery
from trunkline.observe.otlp import SERVER, Span
from trunkline.observe.tracing import Make
from trunkline.transports.exchange import Exchange, HttpRequest
from trunkline.transports.http_listener import HttpListener

SPAN = Span("s", SERVER, "1" * 32, "2" * 16, None, False, "", 1.0, 2.0, b"")


def made(span: Span = SPAN) -> Make:
    """Return a span that is made when it is to be written."""
    return lambda: span


class Collector:
    """An OTLP endpoint: takes what is posted, as its answers say."""

    def __init__(self) -> None:
        self.posted: asyncio.Queue[HttpRequest] = asyncio.Queue()
        self.answer: Callable[[Exchange], None]
        self.answers_with(200)
        self.url = ""

    def answers_with(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        self.answer = lambda exchange: exchange.respond(status, headers)

    def take(self, exchange: Exchange) -> None:
        self.posted.put_nowait(exchange.request)
        self.answer(exchange)


@asynccontextmanager
async def collecting() -> AsyncGenerator[Collector]:
    collector = Collector()
    listener = HttpListener(collector.take)
    async with asyncio.timeout(20):
        await listener.listen("127.0.0.1", 0)
        ((host, port),) = listener.addresses
        collector.url = f"http://{host}:{port}"
        yield collector
        await listener.aclose(1)


@pytest.mark.parametrize("calls", [call_modern, call_in_session])
async def test_a_call_is_seen_by_the_collector(calls: Any) -> None:
    async with collecting() as collector:
        settings = TracesSettings(
            endpoint=collector.url,
            sample=1.0,
            service_name="front",
            headers={"X-Key": "s3cret"},
        )
        app = App(Config(servers=DEFAULT.servers, traces=settings))
        async with app.observation.watching(stdio=False):
            async with app.listening(HERE):
                await calls(app.origins[0], "trunkline__status")
            await app.aclose()
        posted = collector.posted.get_nowait()
    assert (posted.method, posted.path) == ("POST", "/v1/traces")
    assert posted.headers[b"content-type"] == b"application/x-protobuf"
    assert posted.headers[b"x-key"] == b"s3cret"
    resource, scope, spans = read(posted.body)
    assert (resource["service.name"], resource["service.version"]) == ("front", __version__)
    assert scope == ("trunkline", __version__)
    server, client = spans
    assert server.name == client.name == "tools/call trunkline__status"
    assert client.parent_span_id == server.span_id
    said = attributes(server)
    assert said["network.transport"] == "tcp"
    assert ("mcp.session.id" in said) == (calls is call_in_session)


async def deliver(url: str) -> Delivery:
    config = Config(traces=TracesSettings(endpoint=url))
    traces = Traces(config, lambda problem: None, print_incident)
    try:
        return await traces.deliver([made()])
    finally:
        await traces.aclose()


@pytest.mark.parametrize(
    ("status", "again", "after"), [(503, True, 7.0), (429, True, 7.0), (400, False, 7.0)]
)
async def test_a_collector_that_refuses_says_whether_to_come_back(
    status: int, again: bool, after: float
) -> None:
    async with collecting() as collector:
        collector.answers_with(status, (b"retry-after", b"7"))
        found = await deliver(collector.url)
    assert (found.problem, found.again, found.after) == (f"it answered {status}", again, after)


async def test_a_collector_that_is_not_there_is_asked_again_later() -> None:
    async with collecting() as collector:
        url = collector.url
    found = await deliver(url)
    assert found.problem
    assert found.again


async def test_one_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.assembly.traces.TIMEOUT", 0.01)
    async with collecting() as collector:
        collector.answer = lambda exchange: None
        found = await deliver(collector.url)
    assert found == ("no answer within 0.01 s", True, None)


@pytest.mark.parametrize(
    ("given", "posted"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h/otlp/v1/traces?x=1", "https://h/otlp/v1/traces?x=1"),
    ],
)
def test_an_endpoint_without_a_path_has_the_usual_one(given: str, posted: str) -> None:
    assert endpoint_of(TracesSettings(endpoint=given)) == posted


def test_a_backend_is_where_its_settings_have_it() -> None:
    assert place_of(ServerSettings(name="a", command="x")) == {"network.transport": "pipe"}
    assert place_of(ServerSettings(name="a", builtin="operator")) == {}
    found = place_of(ServerSettings(name="a", url="https://h.example/mcp"))
    assert (found["server.address"], found["server.port"]) == ("h.example", 443)
    assert place_of(ServerSettings(name="a", url="http://h:81/"))["server.port"] == 81


async def test_a_span_that_cannot_be_written_keeps_no_other_from_the_collector() -> None:
    broken, reports = structs.replace(SPAN, trace="no hex"), list[Incident]()
    async with collecting() as collector:
        config = Config(traces=TracesSettings(endpoint=collector.url))
        traces = Traces(config, lambda _: None, reports.append)
        for each in [made(broken), *[made()] * TURN]:
            traces.exporter.take(each)
        await traces.aclose()
        posted = collector.posted.get_nowait()
    assert [report.method for report in reports] == ["span"]
    assert len(read(posted.body)[2]) == TURN
