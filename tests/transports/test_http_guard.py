"""Who is made sure of at the door: before anything is answered, but for what everybody may read."""

from typing import Any

from tests.jsonrpc.test_channel import settle, tidy
from tests.transports.exchanges import META, House, Paper, asked, call
from trunkline.mcp.principal import LOCAL, Principal
from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_guard import Challenge, Open, Page
from trunkline.transports.http_server import HttpServer

ANN = Principal("ann")


class Guard:
    """Knows Ann at once, and Bob when it has thought about it."""

    def recognise(self, request: HttpRequest) -> Principal | None:
        return ANN if request.headers.get(b"authorization") == b"ann" else None

    async def identify(self, request: HttpRequest) -> Principal | Challenge:
        if request.headers.get(b"authorization") == b"bob":
            return Principal("bob")
        return Challenge(401, "expected a token", ((b"www-authenticate", b"Bearer"),))


def served(house: House) -> HttpServer:
    return HttpServer(house, guard=Guard(), pages={"/about": about})


def about(request: HttpRequest) -> Page:
    return Page(200, ((b"content-type", b"text/plain"),), b"a page")


async def ask(server: HttpServer, request: HttpRequest) -> Paper:
    paper = Paper(request)
    server.answer(paper)
    await settle()
    return paper


def hello(**headers: str) -> HttpRequest:
    return asked(call(0, "initialize"), **headers)


@tidy
async def test_who_is_known_is_let_in_and_whoever_proves_it_too() -> None:
    house = House()
    server = served(house)
    assert (await ask(server, hello(authorization="ann"))).status == 200
    assert (await ask(server, hello(authorization="bob"))).status == 200
    assert [talk.principal.id for talk in house.talks] == ["ann", "bob"]
    await server.aclose()


@tidy
async def test_nobody_else_is_answered_anything_but_what_is_missing() -> None:
    house = House()
    server = served(house)
    requests: list[Any] = [
        hello(),
        asked(call(1, "tools/call", _meta=META), mcp_protocol_version="2026-07-28"),
        asked(b"{", "GET", "/sse"),
        asked(b"{", "GET", "/ws"),
        asked(b"{", "POST", "/messages"),
        asked(b"{", "GET", "/mcp"),
        asked(b"{", "DELETE", "/mcp"),
        asked(b"{", "GET", "/else"),
    ]
    for request in requests:
        paper = await ask(server, request)
        assert (paper.status, paper.headers[b"www-authenticate"]) == (401, b"Bearer")
        assert b"unauthenticated" in paper.body
    assert house.talks == []
    assert house.served == []
    await server.aclose()


@tidy
async def test_everybody_may_read_pages_and_how_it_is_and_ask_as_a_browser_does() -> None:
    server = served(House())
    assert (await ask(server, asked(b"", "GET", "/about"))).body == b"a page"
    assert (await ask(server, asked(b"", "GET", "/healthz"))).status == 200
    assert (await ask(server, asked(b"", "OPTIONS", "/mcp"))).status == 204
    assert (await ask(server, asked(b"", "POST", "/about"))).status == 401
    assert (await ask(server, asked(b"", "GET", "/about", host="evil.example"))).status == 421
    await server.aclose()


@tidy
async def test_a_session_is_told_what_its_owner_is_taken_for_by_now() -> None:
    house, who = House(), [Principal("ann", roles=("admin",)), Principal("ann", roles=("dev",))]

    class Changing(Guard):
        def recognise(self, request: HttpRequest) -> Principal | None:
            return who[0]

    house.methods["ping"] = lambda request, line: {}
    server = HttpServer(house, guard=Changing())
    session = (await ask(server, hello())).headers[b"mcp-session-id"].decode()
    del who[0]
    paper = await ask(server, asked(call(1, "ping"), mcp_session_id=session))
    assert paper.status == 200
    assert house.talks[0].principal.roles == ("dev",)
    await server.aclose()


async def test_where_nobody_is_asked_everybody_is_the_same() -> None:
    door = Open()
    assert door.recognise(asked()) is LOCAL
    assert await door.identify(asked()) is LOCAL
