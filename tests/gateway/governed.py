"""A gateway that is governed, for tests: a policy, callers with roles, and servers that listen."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.letters import Paper, meta
from tests.gateway.servers import Server, gateway, running, tool
from trunkline.gateway.authority import Authority
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.governance import Governance
from trunkline.gateway.session import Session
from trunkline.jsonrpc import Notification, Raw, Request, RpcError, from_raw, to_raw
from trunkline.mcp.meta import Params
from trunkline.mcp.mirrors import Mirrors
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.conditions import Condition
from trunkline.routing.policy import Policy, Role, Rule
from trunkline.routing.view import View

DEV, OPS = Principal("anna", roles=("dev",)), Principal("otto", roles=("ops",))


def allow(*patterns: str, **more: Any) -> Rule:
    return Rule(True, patterns or ("*",), **more)


def deny(*patterns: str, **more: Any) -> Rule:
    return Rule(False, patterns or ("*",), **more)


ROLES = {
    "ops": Role(frozenset({"*"})),
    "dev": Role(frozenset({"*"}), ("fs__delete_*",), "trunkline.toml:3"),
    "viewer": Role(frozenset({"tools.read"})),
}


ERAS = pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25", "2026-07-28"])
NO_ETC = Condition("args.path.startsWith('/etc')")
READING = Policy([deny("fs__read", condition=NO_ETC, place="policy[0]"), allow(place="policy[1]")])


def files() -> Server:
    """Return a server that offers something of every kind."""
    server = Server(
        tools=[tool("read"), tool("delete_all")],
        prompts=[{"name": "plan"}],
        resources=[{"uri": "file:///a", "name": "a"}],
        resourceTemplates=[{"uriTemplate": "file:///{path}", "name": "any"}],
    )
    server.capabilities |= {"completions": {}, "resources": {"subscribe": True}, "logging": {}}
    return server


def govern(made: Gateway, policy: Policy, searches: frozenset[str] = frozenset()) -> None:
    """Have a gateway judge by a policy."""
    authority = Authority(policy)
    made.layers.governor = Governance(authority)
    made.registry.show(View(None, searches, authority))


@asynccontextmanager
async def governed(policy: Policy, **servers: Server) -> AsyncGenerator[Gateway]:
    """Run a governed gateway before `servers`, once they are ready."""
    made = gateway(**servers)
    govern(made, policy)
    async with running(made, *servers.values()):
        made.registry.start()
        await made.registry.wait_settled()
        yield made


class Member:
    """One who asks in a session, or by letters, and is taken for somebody."""

    def __init__(
        self, made: Gateway, principal: Principal, version: str = "2025-11-25", client: str = "c"
    ) -> None:
        self.gateway, self.principal, self.version, self.client = made, principal, version, client
        self.paper = Paper()
        self.session: Session | None = None
        if version != "2026-07-28":
            self.session = made.open(self.paper, principal)  # type: ignore[arg-type]
            info = {"name": client, "version": "1"}
            said = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
            self.session.answer(Request(0, "initialize", to_raw(said)), None)
            self.session.notified(Notification("notifications/initialized"))

    async def ask(self, method: str, **params: Any) -> Any:
        """Ask, and return the result."""
        return await self.ask_raw(method, to_raw(params))

    async def ask_raw(self, method: str, params: Raw) -> Any:
        """Ask with params that are written already."""
        if self.session is None:
            named = {"io.modelcontextprotocol/clientInfo": {"name": self.client, "version": "1"}}
            whole = {**from_raw(params, dict[str, Raw]), "_meta": meta(**named)}
            request = Request(1, method, to_raw(whole))
            outcome = self.gateway.answer(
                request,
                Params(request.params),
                self.principal,
                self.paper,
                Mirrors({}, frozenset()),
            )
        else:
            outcome = self.session.answer(Request(1, method, params), self.paper)
        result = await outcome if hasattr(outcome, "__await__") else outcome
        return from_raw(to_raw(result))

    async def call(self, name: str, **arguments: Any) -> Any:
        """Call a tool."""
        return await self.ask("tools/call", name=name, arguments=arguments)

    async def refusal(self, method: str, **params: Any) -> tuple[int, str]:
        """Ask what is to be refused; return the code and the message."""
        return await refused(self.ask(method, **params))

    async def names(self, method: str = "tools/list") -> list[str]:
        """List, and return the names or URIs alone."""
        found = await self.ask(method)
        (kind,) = (kind for kind in Kind if kind.method == method)
        return [offer[kind.key] for offer in found[kind.value]]


async def refused(asking: Any) -> tuple[int, str]:
    """Return how something was refused."""
    try:
        answer = await asking
    except RpcError as error:
        return error.code, error.message
    raise AssertionError(f"expected a refusal, got {answer!r}")
