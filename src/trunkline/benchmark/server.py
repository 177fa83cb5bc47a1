"""The fast server: MCP over stdio and over Streamable HTTP, with as little in the way as can be.

    python -m trunkline.benchmark.server --stdio | --http HOST:PORT   [--era handshake|envelope]

Refuses to be safe: it holds no deadline and bounds nothing. It is for measuring, behind loopback.
"""

import argparse
import asyncio
import sys
from typing import cast

import httptools

from trunkline.benchmark.answers import answer
from trunkline.loop import keep_memory, new_loop
from trunkline.mcp.versions import Era

EVERY_ERA = frozenset(Era)


class HttpDoor(asyncio.Protocol):
    """One keep-alive connection: every POST is a message, answered with JSON or with 202."""

    def __init__(self, eras: frozenset[Era] = EVERY_ERA) -> None:
        self._eras = eras
        self._body: list[bytes] = []
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where answers go."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Read on; who does not speak HTTP is cut off."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Answer."""
        body = self._body
        payload = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self._reply(payload)
        if not self._parser.should_keep_alive():
            self._transport.close()

    def _reply(self, payload: bytes) -> None:
        method = self._parser.get_method()
        said = answer(payload, self._eras) if method == b"POST" else ()
        if not said:
            self._transport.write(_EMPTY.get(method, _NOT_ALLOWED))
        elif len(said) == 1:
            self._transport.write(_HEAD % len(said[0]) + said[0])
        else:
            self._transport.writelines((_HEAD % sum(map(len, said)), *said))


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_EMPTY = {
    b"POST": b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
    b"DELETE": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
}
_NOT_ALLOWED = (
    b"HTTP/1.1 405 Method Not Allowed\r\nallow: POST, DELETE\r\ncontent-length: 0\r\n\r\n"
)


class StdioDoor(asyncio.Protocol):
    """Lines in; what they are answered goes out together."""

    def __init__(self, eras: frozenset[Era] = EVERY_ERA) -> None:
        self._eras = eras
        self._rest = b""
        self.outlet: asyncio.WriteTransport
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Answer every line that is complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        said: list[bytes] = []
        for line in lines:
            parts = answer(line, self._eras) if line else ()
            said += (*parts, b"\n") if parts else ()
        self.outlet.writelines(said)

    def connection_lost(self, exc: Exception | None) -> None:
        """End with stdin."""
        self.ended.set()


class _Outlet(asyncio.Protocol):
    """Where answers go; it is closed once all of them are gone."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


async def serve_http(host: str, port: int, eras: frozenset[Era] = EVERY_ERA) -> asyncio.Server:
    """Listen; port 0 takes any that is free."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: HttpDoor(eras), host, port, backlog=1024)


async def serve_stdio(eras: frozenset[Era] = EVERY_ERA) -> None:
    """Serve stdin and stdout until stdin ends."""
    loop = asyncio.get_running_loop()
    door, outlet = StdioDoor(eras), _Outlet()
    door.outlet, _ = await loop.connect_write_pipe(lambda: outlet, sys.stdout.buffer)
    await loop.connect_read_pipe(lambda: door, sys.stdin.buffer)
    await door.ended.wait()
    door.outlet.close()
    await outlet.closed.wait()


async def _serve(options: argparse.Namespace) -> None:
    eras = frozenset({Era(options.era)}) if options.era else EVERY_ERA
    if options.stdio:
        await serve_stdio(eras)
        return
    host, _, port = options.http.rpartition(":")
    server = await serve_http(host, int(port), eras)
    await server.serve_forever()


def main() -> None:
    """Read the command line, and serve."""
    parser = argparse.ArgumentParser(prog="python -m trunkline.benchmark.server")
    door = parser.add_mutually_exclusive_group(required=True)
    door.add_argument("--stdio", action="store_true", help="serve stdin and stdout")
    door.add_argument("--http", metavar="HOST:PORT", help="serve Streamable HTTP, on any path")
    parser.add_argument("--era", choices=[era.value for era in Era], help="speak no other")
    keep_memory()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
