"""Scripted MCP servers and clients over in-memory pipes, for tests."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Self

from tests.tasks import hang_guard
from trunkline.backends.limits import BackendLimits
from trunkline.backends.server_connection import TransportServerConnection
from trunkline.backends.session_server import SessionServer
from trunkline.gateway.backend import (
    Backend,
    BackendAbilities,
    BackendFeatures,
    BackendListener,
)
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import GatewayLimits, UpstreamSettings
from trunkline.jsonrpc import (
    Connection,
    IdRemapper,
    Raw,
    Request,
    RpcError,
    Transport,
    from_raw,
    memory_pipe,
)
from trunkline.mcp.versions import V2025_11_25

Answer = Callable[[Any], Any]
_serving_connection: ContextVar[Connection | None] = ContextVar("connection", default=None)
EMPTY_RESULTS: dict[str, dict[str, Any]] = {
    "prompts/get": {"messages": []},
    "resources/read": {"contents": []},
}
NO_DRAIN_LIMITS = BackendLimits(answer_drain_timeout=0.0)


class Server:
    """A server behind a pipe; the test sets its features and its responses."""

    def __init__(self, version: str = "2025-11-25", **lists: list[dict[str, Any]]) -> None:
        self.version = version
        self.lists = lists
        self.received: list[tuple[str, Any]] = []
        self.requests: list[Request] = []
        self.inbox: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.methods: dict[str, Answer] = {}
        # The open connections with the gateway, each with its transport; the latest comes last
        self.connections: dict[Connection, Transport] = {}
        self.connection: Connection | None = None  # the latest one, also if it has ended
        self.transport: Transport  # the latest one
        self.capabilities: dict[str, Any] = {
            name: {} for name in lists if name != "resourceTemplates"
        }
        self.limits = NO_DRAIN_LIMITS
        self.starts = 0
        self.broken: Exception | None = None
        self.runs: list[asyncio.Task[None]] = []
        self.violations: list[Exception] = []

    def called(self, request: Any) -> Any:
        params = _read(request.params)
        self.requests.append(request)
        self._record(request.method, params)
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
        return dict(EMPTY_RESULTS.get(request.method, {}))

    def notified(self, notification: Any) -> None:
        self._record(notification.method, _read(notification.params))

    def violated(self, violation: Exception) -> None:
        self.violations.append(violation)

    def _record(self, method: str, params: Any) -> None:
        self.received.append((method, params))
        self.inbox.put_nowait((method, params))

    async def connect(
        self, listener: BackendListener, remapper: IdRemapper, capabilities: Any
    ) -> Backend:
        self.starts += 1
        if self.broken is not None:
            raise self.broken
        gateway_end, server_end = memory_pipe()
        self.transport = server_end
        connection = self.connection = Connection(server_end, self, close_timeout=0.0)
        self.connections[connection] = server_end
        self.runs.append(asyncio.create_task(self._serve(connection)))
        remote = SessionServer(listener, self.limits)
        link = TransportServerConnection(
            gateway_end, "test", remapper, remote, close_timeout=self.limits.answer_drain_timeout
        )
        await remote.open(link, capabilities, {"name": "gateway", "version": "0"})
        return remote

    async def _serve(self, connection: Connection) -> None:
        _serving_connection.set(connection)
        try:
            await connection.run()
        finally:
            del self.connections[connection]

    # Used by the tests

    @property
    def active_connection(self) -> Connection:
        """The connection of the request that is being answered, else the latest open one."""
        serving = _serving_connection.get()
        if serving is not None and serving in self.connections:
            return serving
        latest = next(reversed(self.connections), self.connection)
        assert latest is not None
        return latest

    async def ask(self, method: str, params: Any = None) -> Any:
        return from_raw(await self.active_connection.call(method, params), object)

    async def crash(self) -> None:
        """Close the latest connection at once, without answering open requests."""
        await next(reversed(self.connections.values()), self.transport).aclose()

    def count(self, method: str) -> int:
        return [received for received, _ in self.received].count(method)

    async def wait_received(self, method: str) -> Any:
        """Wait for the next message with this method; return its params."""
        while True:
            received, params = await self.inbox.get()
            if received == method:
                return params


class SilentBackend:
    """A backend without abilities and features; tests add what they need."""

    revision = V2025_11_25

    def __init__(self) -> None:
        self.capabilities: dict[str, Any] = {"tools": {}}
        self.abilities = BackendAbilities()
        self.ended = asyncio.Event()

    async def list_features(self) -> BackendFeatures:
        return BackendFeatures()

    async def wait_ended(self) -> None:
        await self.ended.wait()


class HeldAnswer:
    """A response that is held back until the test releases it."""

    def __init__(self, answer: Any = None) -> None:
        self.answer: Any = {"content": []} if answer is None else answer
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, params: Any) -> Any:
        self.started.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self.answer


def refuse(code: int, message: str = "no", data: Any = None) -> Answer:
    """Return a handler that raises this error."""

    def raise_error(params: Any) -> Any:
        raise RpcError(code, message, data)

    return raise_error


def _read(raw: Any) -> Any:
    return from_raw(raw, object) if isinstance(raw, Raw) else None


NO_GRACE = GatewayLimits(close_timeout=0.0, list_change_delay=0.0)
"""Calls end at once when their client closes the connection."""

NO_STARTUP_WAIT = GatewayLimits(first_list_timeout=0.0, list_change_delay=0.0, close_timeout=0.0)
"""Clients do not wait for servers that are starting."""


def make_gateway(limits: GatewayLimits = NO_GRACE, /, **servers: Server) -> Gateway:
    gateway = Gateway(GatewayIdentity("test-gateway", "1.0"), jitter=lambda: 0.0, limits=limits)
    for name, server in servers.items():
        add(gateway, name, server)
    return gateway


def add(gateway: Gateway, name: str, server: Server, **settings: Any) -> None:
    prefix = settings.pop("prefix", name)
    gateway.add_upstream(
        UpstreamSettings(name, prefix, **settings),
        lambda owner: server.connect(
            owner,
            gateway.remapper,
            gateway.client_capabilities
            if owner.client_capabilities is None
            else owner.client_capabilities,
        ),
    )


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **members}


def one_tool(name: str = "echo") -> Server:
    return Server(tools=[tool(name)])


@asynccontextmanager
async def running(gateway: Gateway, *servers: Server) -> AsyncGenerator[Gateway]:
    """Run a gateway; assert that it leaves no task and no pending request."""
    before = asyncio.all_tasks()
    async with hang_guard():  # only against hanging; the machine may be busy
        try:
            yield gateway
        finally:
            await gateway.aclose()
            # The test owns the server ends of the pipes; they close a moment later.
            await asyncio.gather(*(run for server in servers for run in server.runs))
        leftover_tasks = asyncio.all_tasks() - before
        assert leftover_tasks == set(), leftover_tasks
        assert gateway.remapper.pending_count() == 0


@asynccontextmanager
async def serving(
    limits: GatewayLimits = NO_GRACE, /, **servers: Server
) -> AsyncGenerator[Gateway]:
    """Run a gateway with `servers` as its upstreams."""
    async with running(make_gateway(limits, **servers), *servers.values()) as gateway:
        yield gateway


class SessionClient:
    """A client of the gateway over a pipe; it records received requests and notifications."""

    def __init__(self, gateway: Gateway, capabilities: dict[str, Any] | None = None) -> None:
        client_end, gateway_end = memory_pipe()
        self.serving = asyncio.create_task(gateway.serve(gateway_end))
        self.connection = Connection(client_end, self, close_timeout=0.0)
        self.capabilities = capabilities or {}
        self.answers: dict[str, Answer] = {}
        self.asked_requests: list[tuple[str, Any]] = []
        self.requests: list[Request] = []
        self.notifications: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.violations: list[Exception] = []

    def called(self, request: Any) -> Any:
        self.asked_requests.append((request.method, _read(request.params)))
        self.requests.append(request)
        return self.answers[request.method](_read(request.params))

    def notified(self, notification: Any) -> None:
        self.notifications.put_nowait((notification.method, _read(notification.params)))

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

    async def notify(self, method: str, params: Any = None) -> None:
        await self.connection.notify(method, params)

    async def expect_error(self, method: str, params: Any = None) -> RpcError:
        """Send a request that must fail; return the error with decoded data."""
        try:
            answer = await self.ask(method, params)
        except RpcError as error:
            error.data = _read(error.data)
            return error
        raise AssertionError(f"expected an error, got {answer!r}")

    async def unavailable(self, name: str) -> Any:
        """Call a tool whose server is unavailable; return the error."""
        error: Any = await self.expect_error("tools/call", {"name": name})
        assert error.code == -32007
        assert error.data["type"] == "upstream_unavailable"
        assert error.data["server"] in error.message
        return error

    async def hello(self, version: str = "2025-11-25") -> Any:
        answer = await self.ask("initialize", hello(version, self.capabilities))
        await self.connection.notify("notifications/initialized")
        return answer

    async def names(self, method: str = "tools/list") -> list[str]:
        """List features; return only their names or URIs."""
        (features,) = (await self.ask(method)).values()
        return [feature.get("uri") or feature["name"] for feature in features]

    async def wait_notification(self, method: str) -> Any:
        while True:
            received, params = await self.notifications.get()
            if received == method:
                return params

    def take_notifications(self) -> list[tuple[str, Any]]:
        """Return and clear all notifications received so far."""
        return [self.notifications.get_nowait() for _ in range(self.notifications.qsize())]


def hello(version: str = "2025-11-25", capabilities: Any = None) -> dict[str, Any]:
    """Return the params of an `initialize`."""
    return {
        "protocolVersion": version,
        "capabilities": capabilities or {},
        "clientInfo": {"name": "user", "version": "1"},
    }


@asynccontextmanager
async def session_client(
    gateway: Gateway, version: str = "2025-11-25", **capabilities: Any
) -> AsyncGenerator[SessionClient]:
    """Connect a session client; yield it when all servers are ready or have failed."""
    async with SessionClient(gateway, capabilities) as client:
        await client.hello(version)
        await gateway.registry.wait_complete()
        yield client


def text_of(result: Any) -> str:
    """Return the text of a tool's result."""
    return result["content"][0]["text"]
