"""ScriptedServer: an HTTP server that sends exactly the bytes of a script, valid or not.

    async with scripted_server(answers(ok(b"hi")), tear) as server:
        HttpClient(server.url) …

The first connection plays the first script, and so on; further connections play the last one. A
script is a function of the `ScriptedConnection` that it speaks over:

    async def tear(connection: ScriptedConnection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\\r\\ncontent-length: 10\\r\\n\\r\\nonly")
        connection.reset()

A connection is closed when its script ends. A disconnect of the client ends the script; any other
error in it fails the test.
"""

import asyncio
import inspect
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from tests.tasks import tidy

HOST = "127.0.0.1"
_LIMIT = 16 * 1024 * 1024

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBpTCCAUugAwIBAgIUeOB3HmvFMghMoC8+Nc601IyUkPEwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOdHJ1bmtsaW5lIHRlc3QwIBcNMjYxMTE2MDA0NzI3WhgPMjEy
NjEwMjMwMDQ3MjdaMBkxFzAVBgNVBAMMDnRydW5rbGluZSB0ZXN0MFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEjHmCOj2uKCtAy9HkZyxMxwtYSJv3swO0QLib10rg
KA05zA+Qpn4AH9KQLG4orTSQ1kdqxk3rx05xJOhqeTSqZqNvMG0wHQYDVR0OBBYE
FJtOdAj/ZViImRlxMnqQYFT3z5+EMB8GA1UdIwQYMBaAFJtOdAj/ZViImRlxMnqQ
YFT3z5+EMBoGA1UdEQQTMBGCCWxvY2FsaG9zdIcEfwAAATAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0gAMEUCIBSfvGTwbyrirHrfHarQjPnW/fW/Rkt1kQE0
ZwQjKYqaAiEAjJ049n1q4pOsxuZstEiHjuJ55nGfsHQDOu/tOh+wtOc=
-----END CERTIFICATE-----
"""
"""For localhost and 127.0.0.1, signed by itself, until 2126."""

KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgMcdscewCpbuxYgb4
fvRsX3Icw9Dci57gE/S8Cwsb0N2hRANCAASMeYI6Pa4oK0DL0eRnLEzHC1hIm/ez
A7RAuJvXSuAoDTnMD5CmfgAf0pAsbiitNJDWR2rGTevHTnEk6Gp5NKpm
-----END PRIVATE KEY-----
"""
"""No secret: it is here."""


class ReceivedRequest(NamedTuple):
    """A request as the server saw it."""

    method: str
    target: str
    headers: dict[bytes, bytes]
    body: bytes
    head: bytes


class ScriptedConnection:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.requests: list[ReceivedRequest] = []

    async def head(self) -> bytes:
        """Return the head of the next request, and leave its body where it is."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def request(self) -> ReceivedRequest:
        """Return the next whole request; raises EOFError or ConnectionError if none comes."""
        head = await self.head()
        first, *lines = head[:-4].split(b"\r\n")
        headers = dict(connection.split(b": ", 1) for connection in lines)
        body = await self._reader.readexactly(int(headers.get(b"content-length", 0)))
        method, target, _ = first.decode().split(" ")
        self.requests.append(ReceivedRequest(method, target, headers, body, head))
        return self.requests[-1]

    async def send(self, raw: bytes) -> None:
        """Send, and wait while the client is slow."""
        self._writer.write(raw)
        await self._writer.drain()

    async def wait_disconnected(self) -> None:
        """Do nothing until the client has closed the connection."""
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    def shut_down(self) -> None:
        """Send EOF, and keep the connection open."""
        self._writer.write_eof()

    def reset(self) -> None:
        """End the connection as a crash does."""
        found: socket.socket = self._writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def abort(self) -> None:
        """End the connection, and drop unsent data."""
        self._writer.transport.abort()

    def close(self) -> None:
        """End the connection in order, once all that was sent is on its way."""
        self._writer.close()


Script = Callable[[ScriptedConnection], Awaitable[None]]


class ScriptedServer:
    """A server that plays scripts."""

    def __init__(self, scripts: tuple[Script, ...], *, secure: bool) -> None:
        self.lines: list[ScriptedConnection] = []
        self.port = 0
        self._scripts = scripts
        self._secure = secure
        self._plays: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._secure else 'http'}://{HOST}:{self.port}/mcp"

    @property
    def name(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def requests(self) -> list[ReceivedRequest]:
        """The requests received, by connection."""
        return [seen for connection in self.lines for seen in connection.requests]

    async def wait_finished(self) -> None:
        """Wait until every script has ended."""
        await asyncio.gather(*self._plays)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ScriptedConnection(reader, writer)
        script = self._scripts[min(len(self.lines), len(self._scripts) - 1)]
        self.lines.append(connection)
        self._plays.add(asyncio.get_running_loop().create_task(self._play(script, connection)))

    async def _play(self, script: Script, connection: ScriptedConnection) -> None:
        try:
            with suppress(ConnectionError, EOFError):
                await script(connection)
        finally:
            connection.close()

    async def aclose(self) -> None:
        for play in self._plays:
            play.cancel()
        for connection in self.lines:
            connection.abort()
        for ended in await asyncio.gather(*self._plays, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


@asynccontextmanager
async def scripted_server(
    *scripts: Script, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[ScriptedServer]:
    """Serve scripts on a free port of this machine."""
    before = asyncio.all_tasks()
    played = ScriptedServer(scripts, secure=tls is not None)
    server = await asyncio.start_server(played.accept, HOST, 0, ssl=tls, limit=_LIMIT)
    played.port = server.sockets[0].getsockname()[1]
    try:
        yield played
    finally:
        server.close()
        await played.aclose()
        await server.wait_closed()
        if handshakes := asyncio.all_tasks() - before:  # that nothing will end
            await asyncio.wait(handshakes)


def answers(*raws: bytes) -> Script:
    """Return a script that answers one request after the other, then waits for the client to go."""

    async def play(connection: ScriptedConnection) -> None:
        for raw in raws:
            await connection.request()
            await connection.send(raw)
        await connection.wait_disconnected()

    return play


def ok(body: bytes = b"", *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a correct response."""
    lines = [b"HTTP/1.1 " + status, *headers, b"content-length: %d" % len(body), b"", body]
    return b"\r\n".join(lines)


def server_tls(folder: Path) -> ssl.SSLContext:
    """Return the TLS context of a server on this machine; `folder` is for the key."""
    path = folder / "faulty.pem"
    path.write_text(CERTIFICATE + KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def client_tls() -> ssl.SSLContext:
    """Return the TLS context of a client that trusts such a server."""
    return ssl.create_default_context(cadata=CERTIFICATE)


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on asyncio's own loop and on uvloop: tidily, within five seconds."""

    @wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(tidy(test)(**given))

    found = inspect.signature(test)
    mine = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    shown = found.replace(parameters=[*found.parameters.values(), mine])
    setattr(run, "__signature__", shown)  # noqa: B010
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("new_loop", loops, ids=["asyncio", "uvloop"])(run)
