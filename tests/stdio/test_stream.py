"""Payloads over real byte streams: local sockets, pipes, and a child process."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.jsonrpc.peer_messages import request_payload
from tests.tasks import is_stuck, settle, stop, tidy
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    Dispatcher,
    Raw,
    RemoteProtocolError,
    SendLimits,
    Transport,
)
from trunkline.stdio.stream import CLOSE_TIMEOUT, StreamTransport, listen_tcp, open_stdio, open_tcp

HOST = "127.0.0.1"
PIPE_SIZE = 65536

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(
    serve: Callable[[StreamTransport], Awaitable[None]], max_line: int = 10_000_000
) -> AsyncGenerator[int]:
    """Listen on a free port; at the end wait until all connections are served."""
    before = asyncio.all_tasks()
    server = await listen_tcp(HOST, 0, serve, max_line)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if tasks := asyncio.all_tasks() - before:
            await asyncio.wait(tasks)


@asynccontextmanager
async def tcp_pair(max_line: int = 10_000_000) -> AsyncGenerator[tuple[StreamTransport, Streams]]:
    """Return a transport and the raw other end of its connection."""
    accepted: asyncio.Future[StreamTransport] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def serve(transport: StreamTransport) -> None:
        accepted.set_result(transport)
        await over.wait()

    async with listening(serve, max_line) as port:
        streams = await asyncio.open_connection(HOST, port)
        try:
            yield await accepted, streams
        finally:
            over.set()
            streams[1].close()


@asynccontextmanager
async def engine(dispatcher: Dispatcher) -> AsyncGenerator[Streams]:
    """Serve `dispatcher` on a free port; return a connection to it."""

    async def serve(transport: StreamTransport) -> None:
        await Connection(transport, dispatcher).run()

    async with listening(serve, max_line=1000) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            yield reader, writer
        finally:
            writer.close()


@contextmanager
def in_place_of_stdio(monkeypatch: pytest.MonkeyPatch, stdin: int, stdout: int) -> Generator[None]:
    with os.fdopen(stdin) as fake_stdin, os.fdopen(stdout, "w") as fake_stdout:
        monkeypatch.setattr(sys, "stdin", fake_stdin)
        monkeypatch.setattr(sys, "stdout", fake_stdout)
        yield


@asynccontextmanager
async def stdio(
    monkeypatch: pytest.MonkeyPatch, close_timeout: float = CLOSE_TIMEOUT
) -> AsyncGenerator[tuple[StreamTransport, int, int]]:
    """Return a transport over pipes in place of stdin and stdout, and their other ends."""
    (stdin, to_stdin), (from_stdout, stdout) = os.pipe(), os.pipe()
    with in_place_of_stdio(monkeypatch, stdin, stdout):
        transport = await open_stdio(close_timeout=close_timeout)
        try:
            yield transport, to_stdin, from_stdout
        finally:
            await transport.aclose()
            await settle()


def echo() -> Dispatcher:
    dispatcher = Dispatcher()
    dispatcher.method("m")(lambda: 1)
    dispatcher.method("big")(lambda: "x" * 100_000)
    return dispatcher


async def answers(reader: asyncio.StreamReader) -> list[tuple[Any, Any]]:
    """Read all responses; return each as its id and its result or error code."""
    found = [json.loads(line) for line in (await reader.read()).splitlines()]
    return [
        (one["id"], one["result"] if "result" in one else one["error"]["code"]) for one in found
    ]


async def send_forever(transport: Transport, payload: bytes) -> None:
    while True:
        await transport.send(payload)
        await asyncio.sleep(0)


async def fill(transport: Transport) -> asyncio.Task[None]:
    """Send until the buffer is full."""
    task = asyncio.create_task(send_forever(transport, b"x" * 5_000_000))
    assert await is_stuck(task)
    return task


# TCP


@tidy
async def test_two_connections_communicate_over_tcp() -> None:
    async def serve(transport: StreamTransport) -> None:
        await Connection(transport, echo()).run()

    async with listening(serve) as port, Connection(await open_tcp(HOST, port)) as client:
        assert await client.call("m") == Raw(b"1")
        assert len(await client.call("big")) == 100_002


@pytest.mark.holds("O4.1")
@tidy
async def test_lines_are_payloads_both_ways() -> None:
    async with tcp_pair() as (transport, (reader, writer)):
        writer.write(b'1\n\n"two"\r\n')
        assert [await transport.receive(), await transport.receive()] == [b"1", b'"two"']
        await transport.send(b"3")
        assert await reader.readline() == b"3\n"


@tidy
async def test_requests_sent_before_a_half_close_are_answered() -> None:
    go_on = asyncio.Event()
    dispatcher = echo()

    @dispatcher.method("slow")
    async def slow() -> str:
        await go_on.wait()
        return "done"

    async with engine(dispatcher) as (reader, writer):
        writer.write(
            request_payload(1, "slow") + b"\n" + request_payload(2)
        )  # the last line is unfinished
        writer.write_eof()
        assert json.loads(await reader.readline())["id"] == 2
        go_on.set()
        assert await answers(reader) == [(1, "done")]


@tidy
async def test_a_line_too_long_gets_an_error_and_the_next_line_is_served() -> None:
    async with engine(echo()) as (reader, writer):
        writer.write(b"x" * 300_000 + b"\n" + request_payload(1) + b"\n" + b"x" * 2000)
        writer.write_eof()
        assert await answers(reader) == [(None, -32700), (1, 1), (None, -32700)]


@tidy
async def test_a_transport_reports_a_line_too_long_and_continues() -> None:
    async with tcp_pair(max_line=5) as (transport, (_, writer)):
        writer.write(b"123456\n1\n")
        with pytest.raises(RemoteProtocolError):
            await transport.receive()
        assert await transport.receive() == b"1"


@tidy
async def test_a_peer_that_stops_reading_makes_send_wait_and_loses_nothing() -> None:
    async with tcp_pair() as (transport, (reader, _)):
        sending = await fill(transport)
        await stop(sending)
        last = asyncio.create_task(transport.send(b"last"))
        assert await is_stuck(last)
        await stop(last)  # cancels the wait, not the write
        end = b""
        while end != b"last\n":
            end = (end + await reader.read(1_000_000))[-5:]


@tidy
async def test_a_peer_that_stops_reading_is_disconnected() -> None:
    given_up = asyncio.Event()

    async def serve(transport: StreamTransport) -> None:
        await Connection(transport, echo(), send_limits=SendLimits(timeout=0.05)).run()
        given_up.set()

    async with listening(serve) as port:
        _, writer = await asyncio.open_connection(HOST, port)
        writer.writelines(
            request_payload(id, "big") + b"\n" for id in range(300)
        )  # for 30 MB of responses
        await given_up.wait()
        writer.close()


@pytest.mark.parametrize("size", [1_000, 1_000_000])
@tidy
async def test_a_transport_buffers_a_bounded_amount(size: int) -> None:
    some = (b"x" * size + b"\n") * (1_000_000 // size)

    async def write_all(writer: asyncio.StreamWriter) -> None:
        for _ in range(40):
            writer.write(some)
            await writer.drain()
        writer.write(b"last\n")

    async with tcp_pair() as (transport, (_, writer)):
        writing = asyncio.create_task(write_all(writer))
        for _ in range(10):
            assert await is_stuck(writing)
        while await transport.receive() != b"last":
            pass
        await writing


@tidy
async def test_a_dead_peer_ends_receive_and_fails_send() -> None:
    async with tcp_pair() as (transport, (_, writer)):
        sending = await fill(transport)
        receiving = asyncio.create_task(transport.receive())
        assert await is_stuck(receiving)
        writer.transport.abort()
        assert await receiving is None
        with pytest.raises(ConnectionLost):
            await sending
        with pytest.raises(ConnectionLost):
            await transport.send(b"1")


@tidy
async def test_a_closed_transport_receives_and_sends_nothing() -> None:
    async with tcp_pair() as (transport, (reader, writer)):
        receiving = asyncio.create_task(transport.receive())
        await transport.send(b"1")
        writer.write(b"2\n")
        assert await receiving == b"2"
        receiving = asyncio.create_task(transport.receive())
        assert await is_stuck(receiving)
        await asyncio.gather(transport.aclose(), transport.aclose())
        assert await receiving is None
        assert await transport.receive() is None
        with pytest.raises(ConnectionLost):
            await transport.send(b"3")
        assert await reader.read() == b"1\n"  # earlier data still arrives


@tidy
async def test_closing_does_not_wait_for_a_peer_that_has_stopped_reading() -> None:
    async with tcp_pair() as (transport, _):
        sending = await fill(transport)
        await transport.aclose()
        with pytest.raises(ConnectionLost):
            await sending


@tidy
async def test_an_accepted_connection_can_be_closed_at_once() -> None:
    async def refuse(transport: StreamTransport) -> None:
        await transport.send(b"full")
        await transport.aclose()

    async with listening(refuse) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await reader.read() == b"full\n"
        writer.close()


@tidy
async def test_a_connection_is_closed_when_serving_it_fails() -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))

    async def fail(_: StreamTransport) -> None:
        raise ZeroDivisionError

    async with listening(fail) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await reader.read() == b""
        writer.close()


@tidy
async def test_connecting_to_a_closed_port_is_an_error() -> None:
    async def serve(_: StreamTransport) -> None: ...

    async with listening(serve) as port:
        pass
    with pytest.raises(OSError, match="Connect call failed"):
        await open_tcp(HOST, port)


# stdin and stdout


@tidy
async def test_stdin_and_stdout_form_a_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stdio(monkeypatch) as (transport, to_stdin, from_stdout):
        os.write(to_stdin, b"1\n2")
        assert await transport.receive() == b"1"
        await transport.send(b"3")
        assert os.read(from_stdout, 9) == b"3\n"
        os.close(to_stdin)
        assert await transport.receive() == b"2"
        assert await transport.receive() is None
        await transport.send(b"4")  # the write side is still open
        await transport.aclose()
        assert os.read(from_stdout, 9) == b"4\n"
        os.close(from_stdout)


@tidy
async def test_a_closed_stdout_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stdio(monkeypatch) as (transport, to_stdin, from_stdout):
        os.close(from_stdout)
        with pytest.raises(ConnectionLost):
            await send_forever(transport, b"1")
        os.close(to_stdin)


@pytest.mark.parametrize("extra", [1000, 1_000_000])
@pytest.mark.parametrize("cancelled", [False, True])
@tidy
async def test_closing_is_bounded_while_stdout_is_not_read(
    monkeypatch: pytest.MonkeyPatch, extra: int, cancelled: bool
) -> None:
    timeout = CLOSE_TIMEOUT if cancelled else 0.01
    async with stdio(monkeypatch, timeout) as (transport, to_stdin, from_stdout):
        sending = asyncio.create_task(transport.send(b"x" * (PIPE_SIZE + extra)))
        await settle()
        closing = [asyncio.create_task(transport.aclose()) for _ in range(2)]
        await settle()
        if cancelled:
            closing[0].cancel()
        await asyncio.wait([sending, *closing])
        assert sending.exception() is None or extra > PIPE_SIZE
        os.close(to_stdin)
        os.close(from_stdout)


@pytest.mark.parametrize("plain", ["stdin", "stdout"])
@tidy
async def test_a_regular_file_is_rejected(
    plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stdin, to_stdin), (from_stdout, stdout) = os.pipe(), os.pipe()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    ends = (file, stdout) if plain == "stdin" else (stdin, file)
    with in_place_of_stdio(monkeypatch, *ends):
        with pytest.raises(ValueError, match="pipes"):
            await open_stdio()
        await settle()
    for end in {stdin, to_stdin, from_stdout, stdout} - set(ends):
        os.close(end)


PROGRAM = """
import asyncio
from trunkline.jsonrpc import Connection, Dispatcher, Peer
from trunkline.stdio.stream import open_stdio

methods = Dispatcher()
methods.method("ping")(lambda: {})

async def main():
    await Connection(await open_stdio(), methods, Peer(batch_policy="allow")).run()

asyncio.run(main())
"""


@asynccontextmanager
async def child() -> AsyncGenerator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe
    )
    yield process
    assert await process.wait() == 0


@pytest.mark.holds("S4.4", "S4.5")
@tidy
async def test_a_program_answers_every_request_sent_before_eof() -> None:
    batch = (
        b"["
        + request_payload(3, "ping")
        + b',{"jsonrpc":"2.0","method":"ping"},'
        + request_payload("4", "none")
        + b"]"
    )
    async with child() as process:
        lines = [
            request_payload(1, "ping"),
            b"garbage",
            batch,
            b'[{"jsonrpc":"2.0","method":"a"}]',
            request_payload(5),
        ]
        out, errors = await process.communicate(b"\n".join(lines))
    assert errors == b""
    found = [json.loads(line) for line in out.splitlines()]
    assert found[0] == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert found[1]["error"]["code"] == -32700
    assert [answer["id"] for answer in found[2]] == [3, "4"]
    assert [answer["id"] for answer in found[3:]] == [5]


async def test_payloads_go_to_the_receiver_until_it_refuses_one() -> None:
    async with tcp_pair(max_line=10) as (transport, (_, writer)):
        taken: list[bytes] = []

        def receiver(payload: bytes) -> bool:
            taken.append(payload)
            return payload != b"c"

        transport.set_receiver(receiver)
        writer.write(b"a\nb\n")
        writer.write(b"c\nd\n")
        assert await transport.receive() == b"c"
        assert await transport.receive() == b"d"  # queued behind a waiting payload
        assert taken == [b"a", b"b", b"c"]
        writer.write(b"x" * 11 + b"\ne\n")
        with pytest.raises(RemoteProtocolError):
            await transport.receive()
        assert await transport.receive() == b"e"
        writer.write(b"f\n")
        writer.write_eof()
        assert await transport.receive() is None
        assert taken == [b"a", b"b", b"c", b"f"]
