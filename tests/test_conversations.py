"""Golden conversations: the messages between client, gateway and servers, word for word.

A file in `conversations/` has a short description, the servers, and then lines of these kinds:

    -> a message of the client            <- a message of the gateway to the client
    fs -> a message of the server fs      fs <- a message of the gateway to that server
    (ready)  wait for all servers         (fs dies)  (fs leaves)  an event
    (kill tool fs__read), (revive tool fs__read), (pause), (resume)    a command of the operator
    config …  a line of trunkline.toml    caller anna as dev  the identity and role of the client
    limit fs__read: 2                     calls per minute, on a clock that does not advance
    schema of fs read: {…}                the schema that checks the arguments of a tool

A server that is named after others have started is added, as by a reload of the configuration.

Servers answer `initialize` and lists by themselves; the file has all their other messages. Values
that differ in every run, such as an encrypted state, are replaced by numbers: «1», «2» … With
`--update`, the gateway's lines are rewritten with its current messages: read the diff, then commit.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.servers import tool
from tests.tasks import hang_guard
from trunkline.app.build import build_policy_enforcer, build_visibility
from trunkline.backends.connect import ClientIdentity, connect_transport
from trunkline.config import Config
from trunkline.config.policy_tables import PolicySettings, check_policy, resolve_policy
from trunkline.config.references import ResolveContext
from trunkline.documents.parser import as_table, parse_toml
from trunkline.gateway.backend import Backend, BackendOwner, ConnectBackend
from trunkline.gateway.enforcement import ArgumentChecker, EnforcementChain, RateLimiter
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import Transport, memory_pipe
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Principal
from trunkline.mcp.versions import Era, find_revision
from trunkline.routing.kill_switch import parse_switch
from trunkline.routing.limits import Limit, LimitTables

FILES = sorted((Path(__file__).parent / "conversations").glob("*.txt"))
SERVER = re.compile(r"server (\w+)(?: as \"(\w*)\")?(?: of ([\d-]+))?: (.*)")
STEP = re.compile(r"(?:(\w+) )?(->|<-) ?(.*)")
CONFIG = re.compile(r"config ?(.*)")
CALLER = re.compile(r"caller (\w+)(?: as (.*))?")
EVENT = re.compile(r"\((?:(\w+) )?(ready|dies|leaves)\)")
ORDER = re.compile(r"\((kill|revive|pause|resume)(?: (\w+))?(?: (\S+))?\)")
LIMIT = re.compile(r"limit (\w+): (\d+)")
SCHEMA = re.compile(r"schema of (\w+) (\w+): (.*)")
CHANCE = re.compile(
    r'v1\.[\w-]+|(?<=")[\w-]{6}-\d+(?=":\{"method")|(?<=elicitationId":")[0-9a-f-]+'
    r'|(?<="progressToken":)1\d{15}'
)
"""What is made up: states, names of questions, ids of elicitations, and the progress tokens."""


class Scripted:
    """A server that says what its file says; what it offers has a name, or a URI."""

    def __init__(self, version: str, offers: list[str]) -> None:
        tools = [tool(name) for name in offers if "://" not in name]
        resources = [{"uri": uri, "name": uri} for uri in offers if "://" in uri]
        able: dict[str, Any] = {"tools": {}} if tools else {}
        if resources:
            able["resources"] = {"subscribe": True}
        fresh = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        revision = find_revision(version)
        self.era = Era.SESSION if revision is None else revision.era
        self.results: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-11-25", "capabilities": able},
            "server/discover": {"supportedVersions": [version], "capabilities": able, **fresh},
            "tools/list": {"tools": tools, **fresh},
            "resources/list": {"resources": resources, **fresh},
            "resources/templates/list": {"resourceTemplates": [], **fresh},
        }
        self.channel: Transport | None = None
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []

    async def connect(self, gateway: Gateway, name: str, owner: BackendOwner) -> Backend:
        near, far = memory_pipe()
        self.channel = far
        self.tasks.append(asyncio.create_task(self._listen(far)))
        declared = (
            gateway.client_capabilities
            if owner.client_capabilities is None
            else owner.client_capabilities
        )
        client = {"name": "gateway", "version": "0"}
        shown = ClientIdentity(name, gateway.remapper, owner, declared, client)
        return await connect_transport(near, self.era, shown)

    async def _listen(self, channel: Transport) -> None:
        while (payload := await channel.receive()) is not None:
            message: dict[str, Any] = json.loads(payload)
            method = message.get("method", "")
            if method in self.results:
                answer: dict[str, Any] = {
                    "jsonrpc": "2.0",
                    "id": message["id"],
                    "result": self.results[method],
                }
                await channel.send(json.dumps(answer).encode())
            elif method != "notifications/initialized":
                self.channel = channel  # it may have several
                await self.heard.put(payload)

    async def die(self) -> None:
        assert self.channel is not None
        await self.channel.aclose()


class ConversationRunner:
    """Plays one conversation."""

    def __init__(self) -> None:
        self.gateway = Gateway(GatewayIdentity("golden", "1.0"), jitter=lambda: 0.0)
        self.switches = KillSwitchControl(self.gateway.pipeline, self.gateway.registry)
        self.parts: dict[str, Any] = {}
        self.servers: dict[str, Scripted] = {}
        self.table: dict[str, tuple[UpstreamSettings, ConnectBackend]] = {}
        self.chance: list[str] = []
        self.config: list[str] = []
        self.principal = LOCAL_PRINCIPAL
        self.client, self._far = memory_pipe()
        self.serving: asyncio.Task[None] | None = None

    def add(self, name: str, prefix: str | None, version: str | None, offers: str) -> None:
        server = Scripted(version or "2025-11-25", offers.split(", "))
        self.servers[name] = server

        async def connect(owner: BackendOwner) -> Backend:
            return await server.connect(self.gateway, name, owner)

        self.table[name] = (UpstreamSettings(name, name if prefix is None else prefix), connect)
        self.gateway.apply_config(self.table.values())

    def _governs(self, line: str) -> bool:
        """Take in a line about who may do what; return whether it was one."""
        if found := CONFIG.fullmatch(line):
            self.config.append(found[1])
        elif found := CALLER.fullmatch(line):
            self.principal = Principal(found[1], roles=tuple((found[2] or "").split(", ")))
        elif found := LIMIT.fullmatch(line):
            limits = LimitTables(tools={found[1]: Limit(int(found[2]))})
            self.parts["rate_limiter"] = RateLimiter(limits, clock=lambda: 0)
        elif found := SCHEMA.fullmatch(line):
            tools = self.servers[found[1]].results["tools/list"]["tools"]
            next(e for e in tools if e["name"] == found[2])["inputSchema"] = json.loads(found[3])
            self.parts["argument_checker"] = ArgumentChecker(self.gateway.pipeline.events.emit)
        else:
            return False
        return True

    async def play(self, line: str) -> str:
        """Play one line; return it as it should have been."""
        if found := SERVER.fullmatch(line):
            self.add(*found.groups())
        elif self._governs(line):
            pass
        elif found := EVENT.fullmatch(line):
            await self._happen(*found.groups())
        elif found := ORDER.fullmatch(line):
            await self._obey(*found.groups())
        elif found := STEP.fullmatch(line):
            name, direction, text = found.groups()
            if direction == "->":
                for number, found in enumerate(self.chance, 1):
                    text = text.replace(f"«{number}»", found)
                await self._channel(name).send(text.encode())
            else:
                heard = await (self.servers[name].heard.get() if name else self.client.receive())
                shown = CHANCE.sub(self._hide, (heard or b"(the end)").decode())
                return f"{name + ' ' if name else ''}<- {shown}"
        elif line and not line.startswith("#"):
            raise ValueError(f"cannot read {line!r}")
        return line

    async def _happen(self, name: str, what: str) -> None:
        if what == "ready":
            await self.gateway.registry.wait_complete()
        elif what == "leaves":
            del self.table[name]
            self.gateway.apply_config(self.table.values(), removed=[name])
        else:
            await self.servers[name].die()
            await self._until_down(name)

    async def _obey(self, order: str, what: str | None, name: str | None) -> None:
        if order in {"pause", "resume"}:
            getattr(self.switches, order)()
        else:
            await getattr(self.switches, order)(parse_switch(what or "", name or ""))

    def _hide(self, found: re.Match[str]) -> str:
        """Return a number for what is another each time."""
        if found[0] not in self.chance:
            self.chance.append(found[0])
        return f"«{self.chance.index(found[0]) + 1}»"

    def _channel(self, name: str | None) -> Transport:
        if self.serving is None:
            self._begin()
        channel = self.servers[name].channel if name else self.client
        assert channel is not None
        return channel

    def _begin(self) -> None:
        """Let the client in, as the configuration has it."""
        parsed = parse_toml("\n".join(self.config), "trunkline.toml")
        tree: dict[str, Any] = {"servers": self.servers} | (as_table(parsed.tree) or {})
        check_policy(tree, parsed.errors)
        parsed.errors.raise_if_any()
        filled = resolve_policy(tree, ResolveContext({}, Path()), parsed.errors)
        policy = msgspec.convert(filled, PolicySettings)
        config = Config(policy=policy, source=Path("trunkline.toml"))
        authority = build_policy_enforcer(config)
        self.gateway.registry.set_visibility(build_visibility(config, authority))
        self.gateway.pipeline.enforcer = EnforcementChain(authority, self.switches, **self.parts)
        self.serving = asyncio.create_task(self.gateway.serve(self._far, self.principal))

    async def _until_down(self, name: str) -> None:
        while self.gateway.registry.upstream(name).backend is not None:
            await asyncio.sleep(0)

    async def end(self) -> None:
        await self.client.aclose()
        assert self.serving is not None
        await self.serving
        await self.gateway.aclose()
        assert self.gateway.remapper.pending_count() == 0


@pytest.mark.holds("S4.15", "S3.24")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_a_golden_conversation_is_reproduced(path: Path, update: bool) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    stage = ConversationRunner()
    async with hang_guard():
        played = [await stage.play(line) for line in lines]
        await stage.end()
    if update:
        path.write_text("\n".join(played) + "\n", encoding="utf-8")
        return
    assert played == lines, "run `make update`, and read the difference"
