"""Finder: keeps a ToolIndex of the gateway's catalogue, and finds tools in it for a caller.

    Registry ──published──> Finder ──a slice at a time──> ToolIndex ──> what a caller may see

Refuses to index on the way of a call: it works between calls, in slices, and only on what differs.
Whoever searches waits until the index is that of the catalogue.
"""

import asyncio

from trunkline.gateway.registry import Registry
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.routing.catalog import Catalog, Entry
from trunkline.routing.tool_index import Found, ToolIndex

SLICE = 0.002
"""How long, in seconds, others wait while tools are indexed."""


class Finder:
    """Finds tools by what they do."""

    def __init__(self, registry: Registry) -> None:
        """Begin to follow the catalogue."""
        self._registry = registry
        self._index = ToolIndex()
        self._indexed: Catalog | None = None
        self._indexing: asyncio.Task[None] | None = None
        self._unlisten = registry.listen(self._changed)
        self._begin()

    def __len__(self) -> int:
        return len(self._index)

    async def find(
        self, caller: Caller, query: str, limit: int, backend: str | None = None
    ) -> list[Found]:
        """Return the tools that match best, of those that the caller may see."""
        await self._registry.wait_patiently()
        await self._wait_indexed()

        def allow(entry: Entry) -> bool:
            return backend in (None, entry.backend) and self._registry.view.offered(caller, entry)

        return self._index.find(query, limit, allow)

    def closest(self, caller: Caller, name: str, limit: int) -> list[Found]:
        """Return the tools of which one was probably meant, as far as they are indexed."""
        view = self._registry.view
        return self._index.find(name, limit, lambda entry: view.offered(caller, entry))

    def tool(self, caller: Caller, name: str) -> Entry | None:
        """Return the tool of this name, if there is one and the caller may see it."""
        entry = self._registry.catalog.find(Kind.TOOL, name)
        return entry if entry and self._registry.view.offered(caller, entry) else None

    def backends(self, caller: Caller) -> list[str]:
        """Name the backends of which the caller may see a tool."""
        return list(dict.fromkeys(entry.backend for entry in self._entries(caller)))

    def _entries(self, caller: Caller) -> list[Entry]:
        view = self._registry.view
        tools = self._registry.catalog.entries(Kind.TOOL)
        return [e for e in tools if e.backend not in view.searches and view.offered(caller, e)]

    # Following the catalogue

    def _changed(self, kinds: tuple[Kind, ...]) -> None:
        if Kind.TOOL in kinds:
            self._begin()

    def _begin(self) -> None:
        if self._indexing is None or self._indexing.done():
            self._indexing = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Index until the index is that of the catalogue, which may change meanwhile."""
        while self._indexed is not (catalog := self._registry.catalog):
            searches = self._registry.view.searches
            tools = [e for e in catalog.entries(Kind.TOOL) if e.backend not in searches]
            await self._take_in(tools)
            self._indexed = catalog

    async def _take_in(self, tools: list[Entry]) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + SLICE
        for _ in self._index.follow(tools):
            if clock() > until:
                await asyncio.sleep(0)
                until = clock() + SLICE

    async def _wait_indexed(self) -> None:
        """Wait until all is indexed; a catalogue that equals the last one needs no indexing."""
        while self._indexing is not None and not self._indexing.done():
            await asyncio.shield(self._indexing)

    async def aclose(self) -> None:
        """Follow the catalogue no more."""
        self._unlisten()
        if self._indexing is not None:
            self._indexing.cancel()
            await asyncio.gather(self._indexing, return_exceptions=True)
