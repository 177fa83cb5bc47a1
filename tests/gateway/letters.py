"""Letters for tests: requests that stand alone, by HTTP or among others on a pipe; and servers."""

import asyncio
from typing import Any

from tests.gateway.servers import Server
from trunkline.backends.envelope import EnvelopeRemote
from trunkline.backends.link import ChannelLink
from trunkline.gateway.backend import Backend, Listener
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
    pipe,
    to_raw,
)
from trunkline.mcp.meta import PREFIX, Params
from trunkline.mcp.mirrors import Mirrors
from trunkline.mcp.principal import Principal

VERSION = PREFIX + "protocolVersion"
CAPABILITIES = PREFIX + "clientCapabilities"
CLIENT = PREFIX + "clientInfo"
LOG_LEVEL = PREFIX + "logLevel"
SERVER = PREFIX + "serverInfo"
SUBSCRIPTION = PREFIX + "subscriptionId"

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
LISTEN = "subscriptions/listen"


def meta(**more: Any) -> dict[str, Any]:
    """Return an envelope."""
    return {VERSION: "2026-07-28", CAPABILITIES: {}, CLIENT: {"name": "c", "version": "1"}, **more}


def letter(_meta: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    """Return params that stand alone."""
    return {**members, "_meta": meta(**(_meta or {}))}


class Paper:
    """The line of one request: it remembers what was told on it, and whether anything was asked."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.asked: list[str] = []
        self.blocked: asyncio.Event | None = None
        self.torn = False

    async def call(self, method: str, params: Any) -> Raw:
        self.asked.append(method)
        raise RpcError.method_not_found(method)

    async def notify(self, method: str, params: Any) -> None:
        if self.blocked is not None:
            await self.blocked.wait()
        if self.torn:
            raise ConnectionLost("torn")
        self.told.put_nowait((method, from_raw(to_raw(params))))

    async def hear(self) -> tuple[str, Any]:
        return await self.told.get()

    def everything(self) -> list[tuple[str, Any]]:
        return [self.told.get_nowait() for _ in range(self.told.qsize())]


class Poster:
    """A client that asks by HTTP, as far as the gateway can see."""

    def __init__(self, made: Gateway, principal: str = "poster") -> None:
        self.gateway = made
        self.principal = Principal(principal)
        self.headers: dict[bytes, bytes] = {}

    async def send(self, request: Request, paper: Paper | None = None) -> Any:
        """Have a request answered as it is."""
        params = Params(UNSET if request.params is None else request.params)
        mirrors = Mirrors(self.headers, frozenset())
        outcome = self.gateway.answer(request, params, self.principal, paper or Paper(), mirrors)
        result = await outcome if hasattr(outcome, "__await__") else outcome
        return from_raw(to_raw(result))

    async def ask(
        self, method: str, paper: Paper | None = None, id: Any = 1, **members: Any
    ) -> Any:
        said = letter(members.pop("_meta", None), **members)
        return await self.send(Request(id, method, to_raw(said)), paper)

    async def call(self, name: str, paper: Paper | None = None, **members: Any) -> Any:
        return await self.ask("tools/call", paper, name=name, **members)

    async def refusal(self, method: str, **members: Any) -> RpcError:
        try:
            answer = await self.ask(method, **members)
        except RpcError as error:
            error.data = None if error.data is UNSET else from_raw(to_raw(error.data))
            return error
        raise AssertionError(f"expected a refusal, got {answer!r}")

    def listen(self, paper: Paper, id: Any = "s", **wishes: Any) -> "asyncio.Task[Any]":
        """Listen, until it is cancelled or the gateway ends."""
        return asyncio.create_task(self.ask(LISTEN, paper, id=id, notifications=wishes))


async def poster(made: Gateway) -> Poster:
    """Return a client that asks once all servers are ready or have failed."""
    made.registry.start()
    await made.registry.wait_settled()
    return Poster(made)


async def put_away(*listening: "asyncio.Task[Any]") -> None:
    """Cancel, and wait for the end of it."""
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)


class EnvelopeServer(Server):
    """A server of the envelope era behind a pipe."""

    def __init__(self, **lists: list[dict[str, Any]]) -> None:
        super().__init__("2026-07-28", **lists)
        self.fresh: dict[str, Any] = {"ttlMs": 5, "cacheScope": "public"}
        self.capabilities = {name: {"listChanged": True} for name in self.capabilities}

    def called(self, request: Any) -> Any:
        if request.method not in self.methods:
            if request.method == "server/discover":
                self.methods[request.method] = lambda _: {
                    "supportedVersions": [self.version],
                    "capabilities": self.capabilities,
                    "resultType": "complete",
                    **self.fresh,
                }
            if request.method == LISTEN:
                self.requests.append(request)
                params = from_raw(request.params, dict[str, Any])
                self._hear(LISTEN, params)
                return self._listen(request.id, params["notifications"])
        answer: Any = super().called(request)
        whole: dict[str, Any] = {"resultType": "complete", **self.fresh}
        return answer if hasattr(answer, "__await__") else whole | answer

    async def _listen(self, id: Any, wishes: Any) -> Any:
        self.subscription = id
        await self.tell(ACKNOWLEDGED, notifications=wishes)
        await asyncio.Event().wait()

    async def tell(self, method: str, **params: Any) -> None:
        """Tell those who listen."""
        await self.line.notify(method, {"_meta": {SUBSCRIPTION: self.subscription}, **params})

    async def connect(self, listener: Listener, remapper: IdRemapper, capabilities: Any) -> Backend:
        self.starts += 1
        near, far = pipe()
        self.channel = far
        self.connection = Connection(far, self, grace=0.0)
        self.runs.append(asyncio.create_task(self.connection.run()))
        remote = EnvelopeRemote(listener, {"name": "gateway", "version": "0"}, by_http=False)
        await remote.open(ChannelLink(near, "test", remapper, remote))
        return remote
