"""An idle Trunkline: ten servers, many idle sessions, many idle streams.

python -m bench.hop.idle [SESSIONS] [STREAMS]
"""

import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

from bench.gateway.calls import Address, BadResponse, initialize_message, message, post
from bench.gateway.contest import free_port
from bench.gateway.contestants import SERVER
from bench.gateway.process import Program, start
from bench.gateway.session import SESSION_HEADER, open_session
from bench.gateway.table import markdown
from bench.gateway.wire import ClientProtocol, RequestConnection, open_connection
from bench.hop.targets import Target, table
from trunkline.mcp.versions import Era
from trunkline.runtime import create_event_loop

SERVERS = 10
SESSIONS, STREAMS = 2_000, 5_000
FAST = (sys.executable, SERVER)
READY_TIMEOUT = 30.0
SETTLED = 1.0


def config() -> str:
    """Return a configuration of ten servers, with limits that do not interfere."""
    server = f"command = {json.dumps(FAST[0])}\nargs = {json.dumps([*FAST[1:], '--stdio'])}\n"
    server += 'protocol = "session"\n'
    limits = "[http]\nmax_connections = 20000\nmax_connections_per_address = 20000\n"
    sessions = "max_sessions = 20000\n"
    servers = "".join(f"[servers.s{number}]\n{server}" for number in range(SERVERS))
    return limits + sessions + servers


class Stream(ClientProtocol):
    """An idle stream of a session."""

    room = 4096

    def __init__(self, address: Address, session: str) -> None:
        super().__init__(lambda status, _: self._over(f"status {status}"), self._over)
        self._request = (
            f"GET {address.path} HTTP/1.1\r\nhost: {address.host}:{address.port}\r\n"
            f"accept: text/event-stream\r\nmcp-session-id: {session}\r\n\r\n"
        ).encode()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(self._request)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.opened.set_result(None)

    def _over(self, why: str) -> None:
        self.ended = why
        if not self.opened.done():
            self.opened.set_exception(BadResponse(why))


async def greet(line: RequestConnection, address: Address) -> str:
    """Open a session on a shared connection."""
    reply = await line.request(post(address, initialize_message(1), "initialize"))
    session = reply.headers.get(SESSION_HEADER)
    if session is None:
        raise BadResponse(f"expected a session, got {reply.status}: {reply.body[:300]!r}")
    ready = message("notifications/initialized", {}, Era.SESSION)
    await line.request(post(address, ready, "notifications/initialized", "", session))
    return session


async def settled(program: Program) -> float:
    """Return the megabytes of the gateway when it is idle."""
    await asyncio.sleep(SETTLED)
    return program.memory(FAST) / 1e6


async def until_all_are_there(program: Program, address: Address) -> None:
    """Wait for the tools of the last server."""
    async with asyncio.timeout(READY_TIMEOUT):
        while True:
            try:
                await open_session(address)
                break
            except (OSError, BadResponse):
                if program.has_ended:
                    raise BadResponse(program.last_output()) from None
                await asyncio.sleep(0.05)
        await asyncio.sleep(2 * SETTLED)


async def open_streams(address: Address, names: list[str]) -> list[Stream]:
    loop = asyncio.get_running_loop()
    opened: list[Stream] = []
    for name in names:
        _, stream = await loop.create_connection(
            lambda name=name: Stream(address, name), address.host, address.port
        )
        opened.append(stream)
    async with asyncio.timeout(READY_TIMEOUT):
        for stream in opened:
            await stream.opened
    return opened


async def measure(program: Program, address: Address, sessions: int, streams: int) -> list[Target]:
    await until_all_are_there(program, address)
    empty = await settled(program)
    line = await open_connection(address.host, address.port)
    began = perf_counter()
    names = [await greet(line, address) for _ in range(sessions)]
    print(f"{sessions} sessions opened in {perf_counter() - began:.1f} s", flush=True)
    with_sessions = await settled(program)
    names += [await greet(line, address) for _ in range(streams - sessions)]
    before, began = await settled(program), perf_counter()
    opened = await open_streams(address, names[:streams])
    print(f"{streams} streams opened in {perf_counter() - began:.1f} s", flush=True)
    with_streams = await settled(program)
    held = sum(not stream.ended for stream in opened)
    for wire in (line, *opened):
        wire.close()
    print(f"{empty:.1f} MB at rest, {with_sessions:.1f} MB with {sessions} sessions,")
    print(f"{before:.1f} MB with {len(names)}, {with_streams:.1f} MB with {held} streams")
    a_session = 1e3 * (with_sessions - empty) / sessions
    a_stream = 1e3 * (with_streams - before) / streams
    return [
        Target(f"at rest with {SERVERS} servers, MB", 60, empty, at_most=True),
        Target("an idle session, kB", 10, a_session, at_most=True),
        Target("an idle stream of it, kB more", 10, a_stream, at_most=True),
        Target("idle streams held", streams, held),
    ]


async def hold(sessions: int, streams: int) -> list[Target]:
    """Start the gateway, measure, and stop it."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "trunkline.toml"
        path.write_text(config(), encoding="utf-8")
        address = Address(free_port())
        options = ["--http", f"127.0.0.1:{address.port}", "--config", str(path)]
        command = [sys.executable, "-m", "trunkline", "serve", *options]
        program = await start(command, folder / "log", {}, None)
        stack.push_async_callback(program.stop)
        return await measure(program, address, sessions, streams)


def run(sessions: int = SESSIONS, streams: int = STREAMS) -> list[Target]:
    """Measure as `bench.hop` does."""
    with asyncio.Runner(loop_factory=create_event_loop) as runner:
        return runner.run(hold(sessions, streams))


if __name__ == "__main__":
    print(f"\n{markdown(table(run(*map(int, sys.argv[1:]))))}")
