"""Servers as their settings have them: started, found again, and told who we are.

    ServerSettings ──connect──> a way to start it ──> child, HTTP server, or built in

What only some kinds need is imported when one of them is started.
"""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trunkline import __version__
from trunkline.assembly.builtin import builtin
from trunkline.assembly.upstreams import credentials_of
from trunkline.backends.verdicts import Memory, Verdicts, digest
from trunkline.config import ConfigErrors, ServerSettings
from trunkline.gateway.backend import Backend, Connect, Owner
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import ConnectionLost
from trunkline.operator.desk import Desk
from trunkline.transports.stdio import Child

if TYPE_CHECKING:
    from trunkline.backends.oauth import OAuthCredentials
    from trunkline.backends.open_server import Introduction

CHILD_GRACE = 1.0
"""How long, in seconds, a child may take to end by itself, and again to obey."""


@runtime_checkable
class Starting(Protocol):
    """A backend of our own that has something to read before it can answer."""

    async def start(self) -> None:
        """Get ready; raises ConfigErrors."""
        ...


class Servers:
    """Starts servers, and knows their children."""

    def __init__(
        self, gateway: Gateway, desk: Desk, verdicts: Verdicts, folder: Path | None
    ) -> None:
        """Begin with none; commands run in `folder` unless their settings name another."""
        self.children: dict[str, Child] = {}
        """The process of each server that is one, the last of them if there were several."""
        self.expect_anybody = False
        """Whether it is not known yet who will come, and what can be asked of them."""
        self._gateway = gateway
        self._desk = desk
        self._verdicts = verdicts
        self._folder = folder
        self.memories: dict[str, Memory] = {}
        """What was found out about servers, by what each is remembered by."""

    def keep(self, servers: Collection[ServerSettings], gone: Collection[str]) -> None:
        """Forget all but these, and the children of those that have gone."""
        known = {self._memory_key(server) for server in servers}
        self.memories = {key: m for key, m in self.memories.items() if key in known}
        for name in gone:
            self.children.pop(name, None)

    def connect(self, server: ServerSettings) -> Connect:
        """Return what starts a server."""
        if server.kind == "builtin":
            return partial(self._start_builtin, server)
        key = self._memory_key(server)
        memory = self.memories.setdefault(key, Memory(self._verdicts, key))
        if server.kind == "child":
            return partial(self._start_child, server, memory)
        return partial(self._open_http, server, memory, credentials_of(server.oauth))

    def _memory_key(self, server: ServerSettings) -> str:
        folder = self._folder_of(server)
        parts = (server.command, *server.args, str(folder)) if server.command else (server.url,)
        return digest(*map(str, parts))

    async def _start_builtin(self, server: ServerSettings, listener: Owner) -> Backend:
        backend = builtin(server, self._desk)
        if isinstance(backend, Starting):
            try:
                await backend.start()
            except ConfigErrors as wrong:
                raise ConnectionLost(str(wrong)) from None
        return backend

    async def _start_child(
        self, server: ServerSettings, memory: Memory, listener: Owner
    ) -> Backend:
        from trunkline.backends.open_child import ChildTarget  # noqa: PLC0415  see above

        target = ChildTarget(partial(self._spawn, server), server.era, memory)
        return await target.open(self._introduction(server, listener))

    async def _spawn(self, server: ServerSettings) -> Child:
        folder = self._folder_of(server)
        argv = [str(server.command), *server.args]
        child = await Child.start(argv, env=server.env, cwd=folder, grace=CHILD_GRACE)
        known = self.children.get(server.name)
        if known is None or known.returncode is not None:  # else it is one more conversation
            self.children[server.name] = child
        return child

    def _folder_of(self, server: ServerSettings) -> Path | None:
        return Path(server.cwd) if server.cwd else self._folder

    async def _open_http(
        self,
        server: ServerSettings,
        memory: Memory,
        credentials: "OAuthCredentials | None",
        listener: Owner,
    ) -> Backend:
        from trunkline.backends.open_server import HttpTarget  # noqa: PLC0415  see above

        headers = [(name.encode(), value.encode()) for name, value in server.headers.items()]
        target = HttpTarget(str(server.url), headers, server.era, memory, credentials)
        return await target.open(self._introduction(server, listener))

    def _introduction(self, server: ServerSettings, listener: Owner) -> "Introduction":
        from trunkline.backends.open_server import Introduction  # noqa: PLC0415  see above

        gateway = self._gateway
        client = {"name": gateway.identity.name, "version": __version__}
        declared = listener.declares
        if declared is None:
            # With many clients a child's first conversation is for those who cannot be asked,
            # unless it is the only one that there may be.
            several = server.kind == "child" and server.max_conversations > 0
            quiet = self.expect_anybody and several
            declared = {} if quiet else gateway.client_capabilities
        return Introduction(
            server.name, gateway.remapper, listener, declared, client, gateway.report
        )
