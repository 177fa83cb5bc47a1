"""A kind of backend in 40 lines: servers with the key `echo`, whose tool returns its text."""

import asyncio

from trunkline.backends.kind import BackendSettings, ConnectContext
from trunkline.gateway import backend
from trunkline.jsonrpc import PendingResult, to_raw
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.versions import LATEST_SESSION_REVISION


class EchoBackend:
    def __init__(self, text: str) -> None:
        self.revision, self.abilities = LATEST_SESSION_REVISION, backend.BackendAbilities()
        self.capabilities: dict[str, object] = {"tools": {}}
        self.result = to_raw({"content": [{"type": "text", "text": text}]})
        self.closed = asyncio.Event()

    async def list_features(self) -> backend.BackendFeatures:
        definition = to_raw({"name": "say", "inputSchema": {"type": "object", "maxProperties": 1}})
        return backend.BackendFeatures((Feature(FeatureKind.TOOL, "say", definition),))

    def call(self, context: object) -> PendingResult:
        return PendingResult.from_result(self.result)

    async def wait_ended(self) -> None:
        await self.closed.wait()

    async def aclose(self) -> None:
        self.closed.set()


class EchoSettings(BackendSettings, frozen=True, kw_only=True):
    echo: str

    def connector(self, context: ConnectContext) -> backend.ConnectBackend:
        async def connect(owner: backend.BackendOwner) -> EchoBackend:
            return EchoBackend(self.echo)

        return connect
