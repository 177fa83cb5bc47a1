"""Payloads over real byte streams: sockets of this machine, pipes, and a child process."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.jsonrpc.peer_talk import ask
from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from trunkline.jsonrpc import (
    Channel,
    Connection,
    ConnectionLost,
    Dispatcher,
    Raw,
    RemoteProtocolError,
)
from trunkline.transports.stream import StreamChannel, listen_tcp, open_stdio, open_tcp

HOST = "127.0.0.1"
PIPE_SIZE = 65536
LINGER = "trunkline.transports.stream._LINGER"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(
    serve: Callable[[StreamChannel], Awaitable[None]], max_line: int = 10_000_000
) -> AsyncGenerator[int]:
    """Listen on a free port; at the end wait until everybody has been served."""
    before = asyncio.all_tasks()
    server = await listen_tcp(HOST, 0, serve, max_line)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if tasks := asyncio.all_tasks() - before:
            await asyncio.wait(tasks)


@asynccontextmanager
async def tcp_pair(max_line: int = 10_000_000) -> AsyncGenerator[tuple[StreamChannel, Streams]]:
    """Return a Channel and, without one, the other end of the same connection."""
    accepted: asyncio.Future[StreamChannel] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def serve(channel: StreamChannel) -> None:
        accepted.set_result(channel)
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

    async def serve(channel: StreamChannel) -> None:
        await Connection(channel, dispatcher).run()

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
async def stdio(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[StreamChannel, int, int]]:
    """Return a Channel over pipes in the place of stdin and stdout, and their other ends."""
    (stdin, to_stdin), (from_stdout, stdout) = os.pipe(), os.pipe()
    with in_place_of_stdio(monkeypatch, stdin, stdout):
        channel = await open_stdio()
        try:
            yield channel, to_stdin, from_stdout
        finally:
            await channel.aclose()
            await settle()


def echo() -> Dispatcher:
    dispatcher = Dispatcher()
    dispatcher.method("m")(lambda: 1)
    dispatcher.method("big")(lambda: "x" * 100_000)
    return dispatcher


async def answers(reader: asyncio.StreamReader) -> list[tuple[Any, Any]]:
    """Read all that comes; show each answer as its id, and its result or error code."""
    found = [json.loads(line) for line in (await reader.read()).splitlines()]
    return [
        (one["id"], one["result"] if "result" in one else one["error"]["code"]) for one in found
    ]


async def send_for_ever(channel: Channel, payload: bytes) -> None:
    while True:
        await channel.send(payload)
        await asyncio.sleep(0)


async def fill(channel: Channel) -> asyncio.Task[None]:
    """Send until there is no room."""
    task = asyncio.create_task(send_for_ever(channel, b"x" * 5_000_000))
    assert await is_stuck(task)
    return task


# TCP


@tidy
async def test_two_connections_talk_over_tcp() -> None:
    async def serve(channel: StreamChannel) -> None:
        await Connection(channel, echo()).run()

    async with listening(serve) as port, Connection(await open_tcp(HOST, port)) as client:
        assert await client.call("m") == Raw(b"1")
        assert len(await client.call("big")) == 100_002


@tidy
async def test_lines_are_payloads_both_ways() -> None:
    async with tcp_pair() as (channel, (reader, writer)):
        writer.write(b'1\n\n"two"\r\n')
        assert [await channel.receive(), await channel.receive()] == [b"1", b'"two"']
        await channel.send(b"3")
        assert await reader.readline() == b"3\n"


@tidy
async def test_what_was_asked_before_a_half_close_is_answered() -> None:
    go_on = asyncio.Event()
    dispatcher = echo()

    @dispatcher.method("slow")
    async def slow() -> str:
        await go_on.wait()
        return "done"

    async with engine(dispatcher) as (reader, writer):
        writer.write(ask(1, "slow") + b"\n" + ask(2))  # the last line has no end
        writer.write_eof()
        assert json.loads(await reader.readline())["id"] == 2
        go_on.set()
        assert await answers(reader) == [(1, "done")]


@tidy
async def test_a_line_too_long_is_answered_and_the_next_line_served() -> None:
    async with engine(echo()) as (reader, writer):
        writer.write(b"x" * 300_000 + b"\n" + ask(1) + b"\n" + b"x" * 2000)
        writer.write_eof()
        assert await answers(reader) == [(None, -32700), (1, 1), (None, -32700)]


@tidy
async def test_a_channel_reports_a_line_too_long_and_goes_on() -> None:
    async with tcp_pair(max_line=5) as (channel, (_, writer)):
        writer.write(b"123456\n1\n")
        with pytest.raises(RemoteProtocolError):
            await channel.receive()
        assert await channel.receive() == b"1"


@tidy
async def test_a_peer_that_stops_reading_makes_send_wait_and_loses_nothing() -> None:
    async with tcp_pair() as (channel, (reader, _)):
        sending = await fill(channel)
        await stop(sending)
        last = asyncio.create_task(channel.send(b"last"))
        assert await is_stuck(last)
        await stop(last)  # the waiting, not the payload
        end = b""
        while end != b"last\n":
            end = (end + await reader.read(1_000_000))[-5:]


@tidy
async def test_a_peer_that_stops_reading_is_given_up() -> None:
    given_up = asyncio.Event()

    async def serve(channel: StreamChannel) -> None:
        await Connection(channel, echo(), send_timeout=0.05).run()
        given_up.set()

    async with listening(serve) as port:
        _, writer = await asyncio.open_connection(HOST, port)
        writer.writelines(ask(id, "big") + b"\n" for id in range(300))  # for 30 MB of answers
        await given_up.wait()
        writer.close()


@pytest.mark.parametrize("size", [1_000, 1_000_000])
@tidy
async def test_a_channel_that_nobody_reads_from_is_bounded(size: int) -> None:
    some = (b"x" * size + b"\n") * (1_000_000 // size)

    async def talk(writer: asyncio.StreamWriter) -> None:
        for _ in range(40):
            writer.write(some)
            await writer.drain()
        writer.write(b"last\n")

    async with tcp_pair() as (channel, (_, writer)):
        talking = asyncio.create_task(talk(writer))
        for _ in range(10):
            assert await is_stuck(talking)
        while await channel.receive() != b"last":
            pass
        await talking


@tidy
async def test_a_dead_peer_ends_receive_and_fails_send() -> None:
    async with tcp_pair() as (channel, (_, writer)):
        sending = await fill(channel)
        receiving = asyncio.create_task(channel.receive())
        assert await is_stuck(receiving)
        writer.transport.abort()
        assert await receiving is None
        with pytest.raises(ConnectionLost):
            await sending
        with pytest.raises(ConnectionLost):
            await channel.send(b"1")


@tidy
async def test_a_closed_channel_receives_and_sends_nothing() -> None:
    async with tcp_pair() as (channel, (reader, writer)):
        receiving = asyncio.create_task(channel.receive())
        await channel.send(b"1")
        writer.write(b"2\n")
        assert await receiving == b"2"
        receiving = asyncio.create_task(channel.receive())
        assert await is_stuck(receiving)
        await asyncio.gather(channel.aclose(), channel.aclose())
        assert await receiving is None
        assert await channel.receive() is None
        with pytest.raises(ConnectionLost):
            await channel.send(b"3")
        assert await reader.read() == b"1\n"  # what was sent before arrives


@tidy
async def test_closing_does_not_wait_for_a_peer_that_has_stopped_reading() -> None:
    async with tcp_pair() as (channel, _):
        sending = await fill(channel)
        await channel.aclose()
        with pytest.raises(ConnectionLost):
            await sending


@tidy
async def test_whoever_is_accepted_can_be_turned_away_at_once() -> None:
    async def refuse(channel: StreamChannel) -> None:
        await channel.send(b"full")
        await channel.aclose()

    async with listening(refuse) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await reader.read() == b"full\n"
        writer.close()


@tidy
async def test_a_connection_is_closed_when_serving_it_fails() -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))

    async def fail(_: StreamChannel) -> None:
        raise ZeroDivisionError

    async with listening(fail) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await reader.read() == b""
        writer.close()


@tidy
async def test_a_port_where_nobody_listens_is_an_error() -> None:
    async def serve(_: StreamChannel) -> None: ...

    async with listening(serve) as port:
        pass
    with pytest.raises(OSError, match="Connect call failed"):
        await open_tcp(HOST, port)


# stdin and stdout


@tidy
async def test_stdin_and_stdout_are_a_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stdio(monkeypatch) as (channel, to_stdin, from_stdout):
        os.write(to_stdin, b"1\n2")
        assert await channel.receive() == b"1"
        await channel.send(b"3")
        assert os.read(from_stdout, 9) == b"3\n"
        os.close(to_stdin)
        assert await channel.receive() == b"2"
        assert await channel.receive() is None
        await channel.send(b"4")  # the other half is still open
        await channel.aclose()
        assert os.read(from_stdout, 9) == b"4\n"
        os.close(from_stdout)


@tidy
async def test_a_reader_of_stdout_that_goes_away_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stdio(monkeypatch) as (channel, to_stdin, from_stdout):
        os.close(from_stdout)
        with pytest.raises(ConnectionLost):
            await send_for_ever(channel, b"1")
        os.close(to_stdin)


@pytest.mark.parametrize("extra", [1000, 1_000_000])
@pytest.mark.parametrize("cancelled", [False, True])
@tidy
async def test_closing_is_bounded_though_nobody_reads_stdout(
    monkeypatch: pytest.MonkeyPatch, extra: int, cancelled: bool
) -> None:
    monkeypatch.setattr(LINGER, 5 if cancelled else 0.01)
    async with stdio(monkeypatch) as (channel, to_stdin, from_stdout):
        sending = asyncio.create_task(channel.send(b"x" * (PIPE_SIZE + extra)))
        await settle()
        closing = [asyncio.create_task(channel.aclose()) for _ in range(2)]
        await settle()
        if cancelled:
            closing[0].cancel()
        await asyncio.wait([sending, *closing])
        assert sending.exception() is None or extra > PIPE_SIZE
        os.close(to_stdin)
        os.close(from_stdout)


@pytest.mark.parametrize("plain", ["stdin", "stdout"])
@tidy
async def test_a_plain_file_is_refused(
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
from trunkline.transports.stream import open_stdio

methods = Dispatcher()
methods.method("ping")(lambda: {})

async def main():
    await Connection(await open_stdio(), methods, Peer(batch="allow")).run()

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
async def test_a_child_process_answers_all_that_was_asked_before_its_input_ended() -> None:
    batch = b"[" + ask(3, "ping") + b',{"jsonrpc":"2.0","method":"ping"},' + ask("4", "none") + b"]"
    async with child() as process:
        lines = [ask(1, "ping"), b"garbage", batch, b'[{"jsonrpc":"2.0","method":"a"}]', ask(5)]
        out, errors = await process.communicate(b"\n".join(lines))
    assert errors == b""
    found = [json.loads(line) for line in out.splitlines()]
    assert found[0] == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert found[1]["error"]["code"] == -32700
    assert [answer["id"] for answer in found[2]] == [3, "4"]
    assert [answer["id"] for answer in found[3:]] == [5]


async def test_payloads_are_handed_over_where_they_arrive_up_to_one_that_is_not_taken() -> None:
    async with tcp_pair(max_line=10) as (channel, (_, writer)):
        taken: list[bytes] = []

        def take(payload: bytes) -> bool:
            taken.append(payload)
            return payload != b"c"

        channel.deliver(take)
        writer.write(b"a\nb\n")
        writer.write(b"c\nd\n")
        assert await channel.receive() == b"c"
        assert await channel.receive() == b"d"  # it came behind one that waited
        assert taken == [b"a", b"b", b"c"]
        writer.write(b"x" * 11 + b"\ne\n")
        with pytest.raises(RemoteProtocolError):
            await channel.receive()
        assert await channel.receive() == b"e"
        writer.write(b"f\n")
        writer.write_eof()
        assert await channel.receive() is None
        assert taken == [b"a", b"b", b"c", b"f"]
