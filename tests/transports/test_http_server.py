"""The one address and those beside it: who is let in, which era it is, and who keeps house."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from weakref import ref

import pytest

from tests.jsonrpc.test_channel import settle, tidy
from tests.transports.exchanges import META, Gate, House, Paper, altered, asked, call, note, reply
from trunkline.jsonrpc import Channel, Incident, RpcError
from trunkline.mcp.principal import LOCAL, Principal
from trunkline.transports import http_server
from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_rules import HttpRules
from trunkline.transports.http_server import HttpServer

MODERN = {"mcp_protocol_version": "2026-07-28"}
OFTEN = 0.002
"""Seconds that a stream may be silent, where somebody waits for that."""


class Server:
    def __init__(self, house: House, **rules: Any) -> None:
        self.house = house
        self.reports: list[Incident] = []
        self.server = HttpServer(house, HttpRules(**rules), self.reports.append)

    def ask(self, request: HttpRequest) -> Paper:
        paper = Paper(request)
        self.server.answer(paper)
        return paper

    def post(self, body: Any, **headers: str) -> Paper:
        return self.ask(asked(body, **headers))

    def begin(self) -> str:
        return self.post(call(0, "initialize")).headers[b"mcp-session-id"].decode()


@asynccontextmanager
async def opened(house: House | None = None, **rules: Any) -> AsyncGenerator[Server]:
    server = Server(house or House(), **rules)
    try:
        yield server
    finally:
        await server.server.aclose()
        assert server.server.sessions == 0


class Payload(bytearray):
    """Something that can be seen to go."""


# Who is let in


@tidy
async def test_heads_that_differ_in_nothing_that_matters_are_judged_once() -> None:
    page = "http://localhost"
    async with opened(allowed_hosts=frozenset(["here"])) as server:
        asked_for = [
            asked(call(1, "ping"), host="here", origin=page, x_request_id=str(n)) for n in range(3)
        ]
        for request in asked_for:
            server.ask(request)
        verdicts = [request.head.notes for request in asked_for]
        assert len({id(verdict) for verdict in verdicts}) == 3  # each may note more
        verdicts[0].session = verdicts[0].mirrors = "something"
        server.ask(last := asked(call(1, "ping"), host="here", origin=page))
        assert (last.head.notes.session, last.head.notes.mirrors) == (None, None)
        assert last.head.notes.headers is verdicts[0].headers
        server.server.adopt(HttpRules())
        assert server.ask(asked(call(1, "ping"), host="here")).status == 421


@tidy
async def test_nobody_comes_in_by_another_name_or_from_another_page() -> None:
    async with opened() as server:
        for path in ("/mcp", "/sse", "/messages", "/ws", "/healthz", "/else"):
            for method in ("GET", "POST", "OPTIONS"):
                paper = server.ask(asked(b"{", method, path, host="evil.example"))
                assert paper.status == 421
                paper = server.ask(asked(b"{", method, path, origin="https://evil.example"))
                assert paper.status == 403
                assert b"access-control-allow-origin" not in paper.headers
        assert server.server.refusal_of(asked(host="evil.example")) is not None
        assert server.server.refusal_of(asked()) is None
        assert server.house.talks == []


@tidy
async def test_a_page_that_is_let_in_may_read_any_answer() -> None:
    async with opened() as server:
        origin = "http://localhost:3000"
        for paper in (
            server.post(call(1, "initialize"), origin=origin),
            server.post(b"{", origin=origin),
            server.ask(asked(method="PUT", origin=origin)),
            server.ask(asked(path="/else", origin=origin)),
        ):
            assert paper.headers[b"access-control-allow-origin"] == origin.encode()
        wanted = "mcp-param-a, content-type"
        paper = server.ask(
            asked(method="OPTIONS", origin=origin, access_control_request_headers=wanted)
        )
        assert (paper.status, paper.body) == (204, b"")
        assert paper.headers[b"access-control-allow-origin"] == origin.encode()
        assert b"mcp-param-a" in paper.headers[b"access-control-allow-headers"]


# What is asked


@pytest.mark.parametrize("kind", ["", "text/plain", "application/json-seq", "json"])
@tidy
async def test_a_body_is_json(kind: str) -> None:
    async with opened() as server:
        assert server.post(call(1, "initialize"), content_type=kind).status == 415
        latin = "application/json; charset=latin-1"
        assert server.post(call(1, "initialize"), content_type=latin).status == 415
        fine = 'Application/JSON; charset="UTF-8"'
        assert server.post(call(1, "initialize"), content_type=fine).status == 200


@tidy
async def test_a_client_takes_both_kinds_of_answer() -> None:
    async with opened() as server:
        for accept in ("application/json", "text/event-stream", "text/*", "text/html", "*/*;q=0"):
            assert server.post(call(1, "initialize"), accept=accept).status == 406
        for accept in ("", "*/*", "application/*, text/*", "text/event-stream,application/json"):
            assert server.post(call(1, "initialize"), accept=accept).status == 200


@pytest.mark.parametrize("headers", [{}, MODERN])
@tidy
async def test_what_is_no_message_is_refused_in_either_era(headers: dict[str, str]) -> None:
    async with opened() as server:
        for body, code in (
            (b"{", -32700),
            (b"\xff", -32700),
            (b"", -32700),
            (b"7", -32600),
            (b"[]", -32600),
            (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
            (call(None, "ping"), -32600),
            ({"jsonrpc": "2.0", "id": 1, "result": 1, "error": 1}, -32600),
        ):
            paper = server.post(body, **headers)
            assert (paper.status, paper.code) == (400, code)
            assert paper.json["id"] in (None, 1)
        assert server.house.talks == []


@tidy
async def test_the_body_decides_the_era_and_a_header_can_only_contradict_it() -> None:
    async with opened(House(ping=lambda request, line: {"era": "envelope"})) as server:
        meta: dict[str, Any] = {"_meta": META}
        modern = server.post(call(1, "ping", **meta), mcp_method="ping", **MODERN)
        assert modern.json["result"] == {"era": "envelope"}
        for headers, code in (
            ({}, -32020),
            ({"mcp_protocol_version": "2025-11-25"}, -32020),
            ({"mcp_protocol_version": "v999"}, -32020),
        ):
            paper = server.post(call(1, "ping", **meta), mcp_method="ping", **headers)
            assert (paper.status, paper.code) == (400, code)
        bare = server.post(call(1, "ping"), mcp_method="ping", **MODERN)
        assert (bare.status, bare.code) == (400, -32602)
        older = server.post(call(1, "ping"))
        assert (older.status, older.code) == (400, -32600)
        assert "Mcp-Session-Id" in older.json["error"]["message"]


@tidy
async def test_only_an_envelope_makes_a_call_of_a_session_one_of_the_newer_era() -> None:
    async with opened() as server:
        session = {"mcp_session_id": server.begin()}
        version = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        for params in (
            {"name": "a", "arguments": version},  # as bare as those of most calls
            {"name": "a", "arguments": {"_meta": version}},
            {"name": "a", "arguments": {}, "_meta": {"progressToken": "protocolVersion"}},
            version,
        ):
            assert server.post(call(1, "ping", **params), **session).json["result"] == {}
        paper = server.post(call(1, "ping", name="a", arguments={}, _meta=version), **session)
        assert (paper.status, paper.code) == (400, -32602)
        listed = call(2, "ping")
        assert server.post(listed | {"params": ["x"]}, **session).json["result"] == {}
        assert server.house.refusals == []
        paper = server.post(listed | {"params": [version]}, **session)  # nobody can tell
        assert (paper.status, paper.code, paper.json["id"]) == (400, -32602, 2)
        assert [(id, code) for id, _, code in server.house.refusals] == [(2, -32602)]


@tidy
async def test_initialize_is_of_the_older_era_whatever_it_carries() -> None:
    async with opened() as server:
        for version in ("", "2025-11-25", "2024-11-05"):
            paper = server.post(call(1, "initialize", _meta=META), mcp_protocol_version=version)
            assert b"mcp-session-id" in paper.headers
        assert server.server.sessions == 3
        assert server.post(call(1, "initialize"), **MODERN).status == 400
        assert server.server.sessions == 3


@tidy
async def test_what_a_modern_client_tells_is_accepted_and_what_it_answers_is_not() -> None:
    async with opened() as server:
        accepted = server.post(note("notifications/cancelled", requestId=1), **MODERN)
        assert (accepted.status, accepted.body) == (202, b"")
        assert server.post(note("a", _meta=META)).status == 202
        for said in (reply(1), [call(1, "ping")], [reply(1)]):
            paper = server.post(said, **MODERN)
            assert (paper.status, paper.code) == (400, -32600)
        listed = {"jsonrpc": "2.0", "id": 4, "method": "ping", "params": ["x"]}
        paper = server.post(listed, **MODERN)
        assert (paper.status, paper.code, paper.json["id"]) == (400, -32602, 4)
        assert server.post(note("a") | {"params": ["x"]}, **MODERN).code == -32602
        assert [(id, code) for id, _, code in server.house.refusals] == [(4, -32602)]


@tidy
async def test_other_methods_are_told_which_there_are() -> None:
    async with opened() as server:
        paper = server.ask(asked(method="PUT"))
        assert (paper.status, paper.headers[b"allow"]) == (405, b"GET, POST, DELETE")
        for method in ("GET", "DELETE"):
            paper = server.ask(asked(method=method, **MODERN))
            assert (paper.status, paper.headers[b"allow"]) == (405, b"POST")
            assert server.ask(asked(method=method)).status == 400
            assert server.ask(asked(method=method, mcp_session_id="x")).status == 404


@tidy
async def test_a_session_is_opened_used_listened_to_and_deleted() -> None:
    async with opened() as server:
        session = server.begin()
        assert server.post(call(1, "ping"), mcp_session_id=session).json["result"] == {}
        listening = server.ask(asked(method="GET", mcp_session_id=session))
        assert listening.status == 200
        assert server.ask(asked(method="DELETE", mcp_session_id=session)).status == 204
        await settle()
        assert listening.ended


# Beside the one address


@tidy
async def test_the_ways_in_beside_it() -> None:
    async with opened() as server:
        stream = server.ask(asked(method="GET", path="/sse"))
        await settle()
        assert stream.headers[b"content-type"] == b"text/event-stream"
        (event,) = stream.events
        assert event.event == "endpoint"
        assert [principal for _, principal in server.house.served] == [LOCAL]
        path, _, query = event.data.decode().partition("?")
        request = altered(asked(call(1, "ping"), path=path), query=query)
        assert server.ask(request).status == 202
        assert server.ask(asked(call(1, "ping"), path="/messages")).status == 400
        stream.go()
        await settle()
        assert server.ask(request).status == 404
        assert server.ask(asked(method="GET", path="/")).status == 404
        assert server.ask(asked(method="POST", path="/sse")).status == 404


@tidy
async def test_a_web_socket_that_is_none_is_refused() -> None:
    async with opened() as server:
        paper = server.ask(asked(method="GET", path="/ws"))
        await settle()
        assert paper.status in (400, 426)
        assert server.house.served == []


@tidy
async def test_a_conversation_that_breaks_down_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(channel: Channel, principal: Principal) -> None:
        await channel.aclose()
        raise ValueError("oops")

    async with opened() as server:
        monkeypatch.setattr(server.house, "serve", serve)
        stream = server.ask(asked(method="GET", path="/sse"))
        await stream.answered.wait()
        await settle()
        assert [str(incident.error) for incident in server.reports] == ["oops"]


@tidy
async def test_health_and_readiness() -> None:
    async with opened() as server:
        for method in ("GET", "HEAD"):
            for path in ("/healthz", "/health"):
                assert server.ask(asked(method=method, path=path)).status == 200
            for path in ("/readyz", "/ready"):
                server.house.ready = False
                assert server.ask(asked(method=method, path=path)).status == 503
                server.house.ready = True
                assert server.ask(asked(method=method, path=path)).status == 200
        server.server.drain()
        assert server.ask(asked(method="GET", path="/readyz")).status == 503
        assert server.ask(asked(method="GET", path="/healthz")).status == 200
        assert server.ask(asked(method="POST", path="/healthz")).status == 404


# Keeping house


async def until_comments(paper: Paper, count: int) -> None:
    while paper.comments < count:
        await asyncio.sleep(0)


@tidy
async def test_all_that_takes_long_is_kept_alive() -> None:
    gate = Gate()
    async with opened(House("2025-06-18", wait=gate), keep_alive=OFTEN) as server:
        session = server.begin()
        listening = server.ask(asked(method="GET", mcp_session_id=session))
        older = server.post(call(1), mcp_session_id=session)
        modern = server.post(call(1, _meta=META), mcp_method="wait", **MODERN)
        legacy = server.ask(asked(method="GET", path="/sse"))
        for paper in (listening, older, modern, legacy):
            await until_comments(paper, 3)
        legacy.go()
        gate.opened.set()
        await asyncio.gather(older.answered.wait(), modern.answered.wait())
        assert older.data == modern.data == [{"jsonrpc": "2.0", "id": 1, "result": {"done": True}}]


@tidy
async def test_a_batch_is_kept_alive_too() -> None:
    gate = Gate()
    async with opened(House("2025-03-26", wait=gate), keep_alive=OFTEN) as server:
        paper = server.post([call(1)], mcp_session_id=server.begin())
        await until_comments(paper, 2)
        gate.opened.set()
        await paper.answered.wait()
        assert [entry["id"] for entry in paper.data[0]] == [1]


@tidy
async def test_who_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "TURN", 2)
    async with opened(keep_alive=OFTEN) as server:
        papers: list[Paper] = []
        for _ in range(5):
            papers.append(server.ask(asked(method="GET", mcp_session_id=server.begin())))
            if len(papers) % 2:
                papers[-1].room.clear()
        for paper in papers[1::2]:
            await until_comments(paper, 3)
        assert [paper.comments for paper in papers[::2]] == [1, 1, 1]  # and no more until it reads
        papers[0].room.set()
        await until_comments(papers[0], 2)
        for paper in papers:
            paper.go()


async def until_swept(server: Server) -> None:
    """Wait until somebody has looked after the house, and swept out a session that is over."""
    server.begin()
    while server.server.sessions:
        await asyncio.sleep(0)


@tidy
async def test_a_call_that_has_just_begun_is_not_made_a_stream() -> None:
    gate = Gate()
    async with opened(House(wait=gate), keep_alive=0.05, session_idle=-1.0) as server:
        await until_swept(server)
        paper = server.post(call(1, _meta=META), mcp_method="wait", **MODERN)
        await until_swept(server)
        await settle()
        assert not paper.begun  # it was looked at for the first time
        await until_swept(server)
        await until_comments(paper, 1)
        gate.opened.set()
        await paper.answered.wait()


@tidy
async def test_sessions_that_are_over_are_swept_out() -> None:
    async with opened(keep_alive=OFTEN, session_idle=0.0) as server:
        server.begin()
        while server.server.sessions:
            await asyncio.sleep(0)
        await settle()
        assert server.house.closed == server.house.talks


@tidy
async def test_a_breakdown_does_not_stop_the_house_from_being_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(keep_alive=OFTEN) as server:
        paper = server.ask(asked(method="GET", mcp_session_id=server.begin()))
        await until_comments(paper, 1)
        with monkeypatch.context() as patched:
            patched.setattr(http_server, "TURN", 0)
            while not server.reports:
                await asyncio.sleep(0)
        await until_comments(paper, paper.comments + 1)


# The end


@tidy
async def test_what_was_refused_is_let_go_of_at_once() -> None:
    """Not when the collector comes round to it: it may be large, and there may be many."""
    seen: list[ref[Payload]] = []

    def refuse(request: Any, line: Any) -> Any:
        large = Payload(b"x")
        seen.append(ref(large))
        raise RpcError(-32602, f"no {request.id} of {len(large)}")

    async with opened(House("2025-03-26", no=refuse)) as server:
        session = server.begin()
        gc.disable()
        try:
            server.post(call(1, "no"), mcp_session_id=session)
            server.post([call(2, "no"), call(3, "no")], mcp_session_id=session)
            headers = {"mcp_method": "no", **MODERN}
            assert server.post(call(4, "no", _meta=META), **headers).code == -32602
            await settle()
            assert [large() for large in seen] == [None] * 4
        finally:
            gc.enable()


@tidy
async def test_the_end_ends_everything() -> None:
    gate = Gate()
    async with opened(House("2025-06-18", wait=gate)) as server:
        session = server.begin()
        papers = [
            server.ask(asked(method="GET", mcp_session_id=session)),
            server.post(call(1), mcp_session_id=session),
            server.post(call(1, _meta=META), mcp_method="wait", **MODERN),
            server.ask(asked(method="GET", path="/sse")),
        ]
        await settle()
        await server.server.aclose()
        assert [paper.ended for paper in papers[:3]] == [True, True, True]
        assert gate.cancelled == 2
        papers[3].go()
        await settle()
