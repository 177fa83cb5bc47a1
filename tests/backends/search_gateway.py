"""A gateway with the tools that find tools, for tests."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from tests.gateway.servers import NO_GRACE, Server, add, running
from trunkline.backends.tool_search import SearchTools, ToolFinder
from trunkline.gateway.enforcement import EnforcementChain, PolicyEnforcer
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import UpstreamSettings
from trunkline.gateway.upstream import Backend, BackendListener
from trunkline.routing.policy import Policy
from trunkline.routing.visibility import Visibility


@asynccontextmanager
async def searching(
    surface: Sequence[str] | None = None, policy: Policy | None = None, /, **servers: Server
) -> AsyncGenerator[Gateway]:
    """Run a gateway before `servers`, with a search among them."""
    authority = None if policy is None else PolicyEnforcer(policy)
    view = Visibility(surface, frozenset({"search"}), authority)
    made = Gateway(
        GatewayIdentity("test-gateway", "1.0"), lambda: 0.0, visibility=view, limits=NO_GRACE
    )
    made.pipeline.enforcer = EnforcementChain(authority)

    async def connect(listener: BackendListener) -> Backend:
        return SearchTools(ToolFinder(made.registry))

    made.add_upstream(UpstreamSettings("search", "search"), connect)
    for name, server in servers.items():
        add(made, name, server)
    async with running(made, *servers.values()):
        yield made
