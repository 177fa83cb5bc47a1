"""Stateless clients and servers for tests."""

import asyncio
from typing import Any

from tests.gateway.servers import Server
from trunkline.backends.server_connection import TransportServerConnection
from trunkline.backends.stateless_server import StatelessServer
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import (
    UNSET,
    Connection,
    ConnectionLost,
    IdRemapper,
    Raw,
    Request,
    RpcError,
    from_raw,
    memory_pipe,
    to_raw,
)
from trunkline.mcp.http_headers import HeaderCheck
from trunkline.mcp.identity import Principal
from trunkline.mcp.params import META_PREFIX, Params

VERSION = META_PREFIX + "protocolVersion"
CAPABILITIES = META_PREFIX + "clientCapabilities"
CLIENT = META_PREFIX + "clientInfo"
LOG_LEVEL = META_PREFIX + "logLevel"
SERVER = META_PREFIX + "serverInfo"
SUBSCRIPTION = META_PREFIX + "subscriptionId"

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
LISTEN = "subscriptions/listen"


def meta(**more: Any) -> dict[str, Any]:
    """Return the `_meta` of a stateless request."""
    return {VERSION: "2026-07-28", CAPABILITIES: {}, CLIENT: {"name": "c", "version": "1"}, **more}


def stateless_params(_meta: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    """Return the params of a stateless request."""
    return {**members, "_meta": meta(**(_meta or {}))}


class RecordingStream:
    """The stream of one request; it records notifications and requests sent on it."""

    def __init__(self) -> None:
        self.notifications: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.asked_methods: list[str] = []
        self.blocked: asyncio.Event | None = None
        self.broken = False

    async def call(self, method: str, params: Any) -> Raw:
        self.asked_methods.append(method)
        raise RpcError.method_not_found(method)

    async def notify(self, method: str, params: Any) -> None:
        if self.blocked is not None:
            await self.blocked.wait()
        if self.broken:
            raise ConnectionLost("broken")
        self.notifications.put_nowait((method, from_raw(to_raw(params))))

    async def next_notification(self) -> tuple[str, Any]:
        return await self.notifications.get()

    def take_notifications(self) -> list[tuple[str, Any]]:
        return [self.notifications.get_nowait() for _ in range(self.notifications.qsize())]


class StatelessCaller:
    """A client that sends stateless requests, as over HTTP."""

    def __init__(self, gateway: Gateway, principal: str = "poster") -> None:
        self.gateway = gateway
        self.principal = Principal(principal)
        self.headers: dict[bytes, bytes] = {}

    async def send(self, request: Request, stream: RecordingStream | None = None) -> Any:
        """Send a request; return its result."""
        params = Params(UNSET if request.params is None else request.params)
        header_check = HeaderCheck(self.headers, frozenset())
        outcome = self.gateway.handle_stateless(
            request, params, self.principal, stream or RecordingStream(), header_check
        )
        result = await outcome if hasattr(outcome, "__await__") else outcome
        return from_raw(to_raw(result))

    async def ask(
        self, method: str, stream: RecordingStream | None = None, id: Any = 1, **members: Any
    ) -> Any:
        params = stateless_params(members.pop("_meta", None), **members)
        return await self.send(Request(id, method, to_raw(params)), stream)

    async def call(self, name: str, stream: RecordingStream | None = None, **members: Any) -> Any:
        return await self.ask("tools/call", stream, name=name, **members)

    async def expect_error(self, method: str, **members: Any) -> RpcError:
        try:
            answer = await self.ask(method, **members)
        except RpcError as error:
            error.data = None if error.data is UNSET else from_raw(to_raw(error.data))
            return error
        raise AssertionError(f"expected an error, got {answer!r}")

    def listen(self, stream: RecordingStream, id: Any = "s", **filters: Any) -> "asyncio.Task[Any]":
        """Open a subscription stream until it is cancelled or the gateway ends."""
        return asyncio.create_task(self.ask(LISTEN, stream, id=id, notifications=filters))


async def stateless_caller(gateway: Gateway) -> StatelessCaller:
    """Return a stateless client when all servers are ready or have failed."""
    gateway.registry.start()
    await gateway.registry.wait_complete()
    return StatelessCaller(gateway)


async def cancel_all(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class StatelessScriptedServer(Server):
    """A server of the stateless protocol behind a pipe."""

    def __init__(self, **lists: list[dict[str, Any]]) -> None:
        super().__init__("2026-07-28", **lists)
        self.cache_fields: dict[str, Any] = {"ttlMs": 5, "cacheScope": "public"}
        self.capabilities = {name: {"listChanged": True} for name in self.capabilities}

    def called(self, request: Any) -> Any:
        if request.method not in self.methods:
            if request.method == "server/discover":
                self.methods[request.method] = lambda _: {
                    "supportedVersions": [self.version],
                    "capabilities": self.capabilities,
                    "resultType": "complete",
                    **self.cache_fields,
                }
            if request.method == LISTEN:
                self.requests.append(request)
                params = from_raw(request.params, dict[str, Any])
                self._record(LISTEN, params)
                return self._listen(request.id, params["notifications"])
        answer: Any = super().called(request)
        result: dict[str, Any] = {"resultType": "complete", **self.cache_fields}
        return answer if hasattr(answer, "__await__") else result | answer

    async def _listen(self, id: Any, filters: Any) -> Any:
        self.subscription = id
        await self.notify_subscriber(ACKNOWLEDGED, notifications=filters)
        await asyncio.Event().wait()

    async def notify_subscriber(self, method: str, **params: Any) -> None:
        """Send a notification on the subscription stream."""
        await self.active_connection.notify(
            method, {"_meta": {SUBSCRIPTION: self.subscription}, **params}
        )

    async def connect(
        self, listener: BackendListener, remapper: IdRemapper, capabilities: Any
    ) -> Backend:
        self.starts += 1
        gateway_end, server_end = memory_pipe()
        self.transport = server_end
        self.connection = Connection(server_end, self, close_timeout=0.0)
        self.runs.append(asyncio.create_task(self.connection.run()))
        client_info = {"name": "gateway", "version": "0"}
        remote = StatelessServer(listener, client_info, over_http=False, limits=self.limits)
        link = TransportServerConnection(
            gateway_end, "test", remapper, remote, close_timeout=self.limits.answer_drain_timeout
        )
        await remote.open(link)
        return remote
