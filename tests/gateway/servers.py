"""Servers for tests: MCP over an in-memory pipe, scripted in a few lines; clients as well."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from trunkline.backends.link import ChannelLink
from trunkline.backends.remote import Remote
from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Identity
from trunkline.gateway.settings import Settings
from trunkline.jsonrpc import (
    Channel,
    Connection,
    IdRemapper,
    Raw,
    Request,
    RpcError,
    from_raw,
    pipe,
)
from trunkline.mcp.cacheable import Freshness

Answer = Callable[[Any], Any]


class Server:
    """A server behind a pipe; what it offers and how it answers is up to the test."""

    def __init__(self, version: str = "2025-11-25", **lists: list[dict[str, Any]]) -> None:
        self.version = version
        self.lists = lists
        self.heard: list[tuple[str, Any]] = []
        self.requests: list[Request] = []
        self.news: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.methods: dict[str, Answer] = {}
        self.connection: Connection | None = None
        self.channel: Channel
        self.capabilities: dict[str, Any] = {
            name: {} for name in lists if name != "resourceTemplates"
        }
        self.starts = 0
        self.broken: Exception | None = None
        self.runs: list[asyncio.Task[None]] = []
        self.violations: list[Exception] = []

    def called(self, request: Any) -> Any:
        params = _read(request.params)
        self.requests.append(request)
        self._hear(request.method, params)
        if request.method in self.methods:
            return self.methods[request.method](params)
        if request.method == "initialize":
            return {
                "protocolVersion": self.version,
                "capabilities": self.capabilities,
                "serverInfo": {"name": "test", "version": "1"},
            }
        if request.method.endswith("/list"):
            key = "resourceTemplates" if "templates" in request.method else request.method[:-5]
            return {key: self.lists.get(key, [])}
        if request.method == "tools/call":
            return {"content": [{"type": "text", "text": f"{params['name']} ran"}]}
        return {}

    def notified(self, notification: Any) -> None:
        self._hear(notification.method, _read(notification.params))

    def violated(self, violation: Exception) -> None:
        self.violations.append(violation)

    def _hear(self, method: str, params: Any) -> None:
        self.heard.append((method, params))
        self.news.put_nowait((method, params))

    async def connect(self, listener: Listener, remapper: IdRemapper, capabilities: Any) -> Backend:
        self.starts += 1
        if self.broken is not None:
            raise self.broken
        near, far = pipe()
        self.channel = far
        self.connection = Connection(far, self, grace=0.0)
        self.runs.append(asyncio.create_task(self.connection.run()))
        remote = Remote(listener)
        link = ChannelLink(near, "test", remapper, remote)
        await remote.open(link, capabilities, {"name": "gateway", "version": "0"})
        return remote

    # For tests

    @property
    def line(self) -> Connection:
        """The way to the gateway."""
        assert self.connection is not None
        return self.connection

    async def ask(self, method: str, params: Any = None) -> Any:
        return from_raw(await self.line.call(method, params), object)

    async def die(self) -> None:
        """End, without a word and in the midst of whatever it does."""
        await self.channel.aclose()

    def count(self, method: str) -> int:
        return [heard for heard, _ in self.heard].count(method)

    async def until_heard(self, method: str) -> Any:
        """Return the params of the next message of this method that was not waited for yet."""
        while True:
            heard, params = await self.news.get()
            if heard == method:
                return params


class Silent:
    """A backend to which nothing matters but what a test makes of it."""

    version = "2025-11-25"
    freshness = Freshness()
    left_out: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.capabilities: dict[str, Any] = {"tools": {}}
        self.ended = asyncio.Event()

    def waits_since(self, client: object) -> None: ...
    async def tell(self, method: str, params: Any) -> None: ...
    async def ping(self) -> None: ...
    async def follow(self, uri: str) -> None: ...
    async def unfollow(self, uri: str) -> None: ...
    async def set_level(self, level: str) -> None: ...

    async def wait_ended(self) -> None:
        await self.ended.wait()


class Hold:
    """An answer that comes when the test says so."""

    def __init__(self, answer: Any = None) -> None:
        self.answer: Any = {"content": []} if answer is None else answer
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, params: Any) -> Any:
        self.begun.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self.answer


def refuse(code: int, message: str = "no", data: Any = None) -> Answer:
    """Return an answer that is an error."""

    def refusing(params: Any) -> Any:
        raise RpcError(code, message, data)

    return refusing


def _read(raw: Any) -> Any:
    return from_raw(raw, object) if isinstance(raw, Raw) else None


def gateway(**servers: Server) -> Gateway:
    made = Gateway(Identity("test-gateway", "1.0"), chance=lambda: 0.0)
    for name, server in servers.items():
        add(made, name, server)
    return made


def add(made: Gateway, name: str, server: Server, **settings: Any) -> None:
    prefix = settings.pop("prefix", name)
    made.add(
        Settings(name, prefix, **settings),
        lambda owner: server.connect(
            owner,
            made.remapper,
            made.client_capabilities if owner.declares is None else owner.declares,
        ),
    )


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **members}


def one_tool(name: str = "echo") -> Server:
    return Server(tools=[tool(name)])


@asynccontextmanager
async def running(made: Gateway, *servers: Server) -> AsyncGenerator[Gateway]:
    """Run a gateway for a moment, and see to it that nothing of it is left afterwards."""
    before = asyncio.all_tasks()
    async with asyncio.timeout(20):  # a bound, not a measure: machines are busy at times
        try:
            yield made
        finally:
            await made.aclose()
            # Its servers' own ends are the test's, and learn of the end a moment later.
            await asyncio.gather(*(run for server in servers for run in server.runs))
        left = asyncio.all_tasks() - before
        assert left == set(), left
        assert made.remapper.pending_count() == 0


@asynccontextmanager
async def serving(**servers: Server) -> AsyncGenerator[Gateway]:
    """Run a gateway before `servers`."""
    async with running(gateway(**servers), *servers.values()) as made:
        yield made


class User:
    """A client of the gateway over a pipe: it asks, and remembers what it was asked and told."""

    def __init__(self, made: Gateway, capabilities: dict[str, Any] | None = None) -> None:
        near, far = pipe()
        self.serving = asyncio.create_task(made.serve(far))
        self.connection = Connection(near, self, grace=0.0)
        self.capabilities = capabilities or {}
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, Any]] = []
        self.requests: list[Request] = []
        self.told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.violations: list[Exception] = []

    def called(self, request: Any) -> Any:
        self.asked.append((request.method, _read(request.params)))
        self.requests.append(request)
        return self.answers[request.method](_read(request.params))

    def notified(self, notification: Any) -> None:
        self.told.put_nowait((notification.method, _read(notification.params)))

    def violated(self, violation: Exception) -> None:
        self.violations.append(violation)

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.__aexit__()
        await self.serving
        assert self.violations == []

    async def ask(self, method: str, params: Any = None) -> Any:
        return from_raw(await self.connection.call(method, params), object)

    async def call(self, name: str, **members: Any) -> Any:
        """Call a tool."""
        return await self.ask("tools/call", {"name": name, **members})

    async def tell(self, method: str, params: Any = None) -> None:
        await self.connection.notify(method, params)

    async def refusal(self, method: str, params: Any = None) -> RpcError:
        """Ask what is to be refused, and return how it was; its data as Python has it."""
        try:
            answer = await self.ask(method, params)
        except RpcError as error:
            error.data = _read(error.data)
            return error
        raise AssertionError(f"expected a refusal, got {answer!r}")

    async def unavailable(self, name: str) -> Any:
        """Call a tool whose server is not there, and return the refusal."""
        error: Any = await self.refusal("tools/call", {"name": name})
        assert error.code == -32007
        assert error.data["type"] == "upstream_unavailable"
        assert error.data["server"] in error.message
        return error

    async def hello(self, version: str = "2025-11-25") -> Any:
        answer = await self.ask("initialize", hello(version, self.capabilities))
        await self.connection.notify("notifications/initialized")
        return answer

    async def names(self, method: str = "tools/list") -> list[str]:
        """List, and return the names or URIs alone."""
        (found,) = (await self.ask(method)).values()
        return [offer.get("uri") or offer["name"] for offer in found]

    async def until_told(self, method: str) -> Any:
        while True:
            heard, params = await self.told.get()
            if heard == method:
                return params

    def everything(self) -> list[tuple[str, Any]]:
        """Return all that it was told and has not waited for."""
        return [self.told.get_nowait() for _ in range(self.told.qsize())]


def hello(version: str = "2025-11-25", capabilities: Any = None) -> dict[str, Any]:
    """Return the params of an `initialize`."""
    return {
        "protocolVersion": version,
        "capabilities": capabilities or {},
        "clientInfo": {"name": "user", "version": "1"},
    }


@asynccontextmanager
async def user(
    made: Gateway, version: str = "2025-11-25", **capabilities: Any
) -> AsyncGenerator[User]:
    """Let a client talk to the gateway, once all servers are ready or have failed."""
    async with User(made, capabilities) as somebody:
        await somebody.hello(version)
        await made.registry.wait_settled()
        yield somebody


def text_of(result: Any) -> str:
    """Return the text of a tool's result."""
    return result["content"][0]["text"]
