"""A gateway with the tools that find tools, for tests."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from tests.gateway.servers import Server, add, running
from trunkline.backends.search import Search
from trunkline.gateway.authority import Authority
from trunkline.gateway.finder import Finder
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.governance import Governance
from trunkline.gateway.session import Identity
from trunkline.gateway.settings import Settings
from trunkline.gateway.upstream import Backend, Listener
from trunkline.routing.policy import Policy
from trunkline.routing.view import View


@asynccontextmanager
async def searching(
    surface: Sequence[str] | None = None, policy: Policy | None = None, /, **servers: Server
) -> AsyncGenerator[Gateway]:
    """Run a gateway before `servers`, with a search among them."""
    authority = None if policy is None else Authority(policy)
    view = View(surface, frozenset({"search"}), authority)
    made = Gateway(Identity("test-gateway", "1.0"), chance=lambda: 0.0, view=view)
    made.layers.governor = Governance(authority)

    async def connect(listener: Listener) -> Backend:
        return Search(Finder(made.registry))

    made.add(Settings("search", "search"), connect)
    for name, server in servers.items():
        add(made, name, server)
    async with running(made, *servers.values()):
        yield made
