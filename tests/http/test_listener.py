"""A listener with clients that disconnect, stall, are too many, or stay too long."""

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.http.scripted_server import HOST, client_tls, on_both_loops, server_tls
from tests.http.test_connection import (
    BIG,
    Client,
    QueueingHandler,
    connected,
    conversing,
    echo,
    later,
    serving,
)
from tests.tasks import HANG_TIMEOUT, LoopClock, is_stuck, settle, tidy
from trunkline.http.address import TrustedProxies, client_network
from trunkline.http.exchange import HttpExchange
from trunkline.http.listener import HttpListener
from trunkline.http.message import HttpLimits
from trunkline.jsonrpc import ConnectionLost, Incident

SOON = 0.3
"""A deadline that is meant to pass."""


async def emptied(listener: HttpListener) -> None:
    while listener.connections:
        await asyncio.sleep(0)


# Clients that disconnect.


@pytest.mark.parametrize("begun", [False, True])
@on_both_loops
async def test_a_reset_is_noticed_during_an_exchange(begun: bool) -> None:
    async with serving(handler := QueueingHandler()) as listener, connected(listener) as client:
        client.get()
        exchange = await handler.next()
        if begun:
            exchange.begin(200)
            await client.head()
        client.reset()
        await handler.disconnected.wait()
        if begun:
            with pytest.raises(ConnectionLost):
                await exchange.send(b"late")
            exchange.finish()
        else:
            exchange.respond(200, (), b"late")
        called = asyncio.Event()
        exchange.on_disconnect(called.set)
        await called.wait()
        await emptied(listener)


@on_both_loops
async def test_a_client_that_closes_is_disconnected_soon() -> None:
    async with conversing(
        handler := QueueingHandler(), HttpLimits(half_closed_timeout=SOON)
    ) as client:
        client.get()
        exchange = await handler.next()
        client.writer.close()  # without unread bytes, which would cause a reset
        await handler.disconnected.wait()
        exchange.begin(200)
        with pytest.raises(ConnectionLost):
            await exchange.send(b"late")


@on_both_loops
async def test_a_half_closed_client_gets_its_response() -> None:
    async with conversing(
        handler := QueueingHandler(), HttpLimits(half_closed_timeout=60)
    ) as client:
        client.get()
        exchange = await handler.next()
        client.writer.write_eof()
        await settle()
        exchange.respond(200, (), b"hi")
        assert await client.answer() == (
            200,
            {b"connection": b"close", b"content-length": b"2"},
            b"hi",
        )
        assert await client.rest() == b""
        await settle()
        assert not handler.disconnected.is_set()


@on_both_loops
async def test_a_half_closed_client_gets_all_responses() -> None:
    async with conversing(later) as client:
        for number in range(1000):
            client.get(f"/{number}")
        client.writer.write_eof()
        assert (await client.rest()).count(b"HTTP/1.1 200 OK") == 1000


@on_both_loops
async def test_a_partial_request_after_eof_is_dropped() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.get()
        exchange = await handler.next()
        client.send(b"GET / HTTP/1.1\r\n")
        client.writer.write_eof()
        await settle()
        exchange.respond(200)
        assert await client.rest() == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@on_both_loops
async def test_a_partial_request_is_not_handled() -> None:
    async with serving(handler := QueueingHandler()) as listener, connected(listener) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhalf")
        client.writer.write_eof()
        assert await client.rest() == b""
        await emptied(listener)
        assert handler.waiting == 0


async def test_a_disconnect_after_the_response_calls_nothing() -> None:
    async with serving(handler := QueueingHandler()) as listener, connected(listener) as client:
        client.get()
        exchange = await handler.next()
        exchange.respond(200)
        exchange.on_disconnect(handler.disconnected.set)
        await client.answer()
        client.reset()
        await emptied(listener)
        await settle()
        assert not handler.disconnected.is_set()


# Clients that stall.


@on_both_loops
async def test_a_silent_connection_is_closed() -> None:
    async with conversing(echo, HttpLimits(head_timeout=SOON)) as client:
        assert await client.rest() == b""


@on_both_loops
async def test_a_slow_head_closes_the_connection() -> None:
    async with conversing(echo, HttpLimits(head_timeout=SOON)) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
        status, _, body = await client.answer()
        assert (status, body) == (408, b"the head did not arrive in time\n")
        assert await client.rest() == b""


@pytest.mark.parametrize(
    "limits",
    [HttpLimits(body_timeout=SOON), HttpLimits(min_rate_delay=SOON, min_rate=1_000_000)],
    ids=["late", "slow"],
)
@on_both_loops
async def test_a_slow_body_closes_the_connection(limits: HttpLimits) -> None:
    async with conversing(echo, limits) as client:
        client.get("/", "Content-Length: 5", method="POST")
        client.send(b"h")
        status, _, body = await client.answer()
        assert (status, body) == (408, b"the body did not arrive in time\n")
        assert await client.rest() == b""


@on_both_loops
async def test_an_idle_connection_is_closed() -> None:
    async with conversing(echo, HttpLimits(idle_timeout=SOON)) as client:
        client.get()
        assert (await client.answer()).status == 200
        assert await client.rest() == b""


@tidy
async def test_a_running_exchange_has_no_deadline() -> None:
    clock = LoopClock()
    async with serving(handler := QueueingHandler()) as listener, connected(listener) as client:
        client.get()
        exchange = await handler.next()
        async with connected(listener) as idle:
            closed = asyncio.create_task(idle.rest())
            await clock.advance_until(closed)
            await clock.advance(3600.0)
        exchange.respond(200)
        assert (await client.answer()).status == 200


@on_both_loops
async def test_a_client_that_does_not_read_its_response_is_disconnected() -> None:
    limits = HttpLimits(write_timeout=SOON, min_rate=1_000_000)
    handler = QueueingHandler()
    async with serving(handler, limits) as listener, connected(listener) as client:
        client.get()
        client.stop_reading()
        (await handler.next()).respond(200, (), bytes(BIG))
        await emptied(listener)


@on_both_loops
async def test_a_client_that_does_not_read_its_stream_is_disconnected() -> None:
    limits = HttpLimits(write_timeout=SOON, min_rate=1_000_000)
    async with conversing(handler := QueueingHandler(), limits) as client:
        client.get()
        exchange = await handler.next()
        client.stop_reading()
        exchange.begin(200)
        with pytest.raises(ConnectionLost):
            await exchange.send(bytes(BIG))
        await handler.disconnected.wait()


@on_both_loops
async def test_a_rejected_client_cannot_stay() -> None:
    async with conversing(echo, HttpLimits(linger_timeout=SOON)) as client:
        client.send(b"nonsense\r\n\r\n")
        assert (await client.answer()).status == 400
        while not client.writer.transport.is_closing():
            client.send(b"more")
            await asyncio.sleep(0)


# Many clients.


@on_both_loops
async def test_connections_are_limited() -> None:
    async with serving(echo, HttpLimits(max_connections=2)) as listener:
        async with connected(listener) as one, connected(listener) as two:
            for client in (one, two):
                client.get()
                assert (await client.answer()).status == 200
            async with connected(listener) as three:
                status, headers, _ = await three.answer()
                assert (status, headers[b"retry-after"]) == (503, b"1")
                assert await three.rest() == b""
            assert listener.connections == 2
        await emptied(listener)
        async with connected(listener) as four:
            four.get()
            assert (await four.answer()).status == 200


async def test_connections_are_limited_per_address() -> None:
    async with serving(echo, HttpLimits(max_connections_per_address=1)) as listener:
        for _ in range(2):
            async with connected(listener, HOST) as one, connected(listener, "127.0.0.2") as two:
                for client in (one, two):
                    client.get()
                    assert (await client.answer()).status == 200
                async with connected(listener, HOST) as three:
                    assert (await three.answer()).status == 503
                assert listener.client_addresses == 2
            await emptied(listener)
            assert listener.client_addresses == 0


async def test_addresses_of_one_ipv6_network_share_a_connection_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The machine may have one IPv6 address only: these stand for two of one network.
    addresses = {"127.0.0.2": "2001:db8:1:2::a", "127.0.0.3": "2001:db8:1:2::b"}

    def network(address: str) -> str:
        return client_network(addresses.get(address, address))

    monkeypatch.setattr("trunkline.http.listener.client_network", network)
    async with (
        serving(echo, HttpLimits(max_connections_per_address=1)) as listener,
        connected(listener, "127.0.0.2") as one,
        connected(listener, "127.0.0.3") as two,
        connected(listener, HOST) as other,
    ):
        one.get()
        other.get()
        assert [(await each.answer()).status for each in (one, two, other)] == [200, 503, 200]


async def test_a_trusted_proxy_has_no_limit_per_address() -> None:
    listener = HttpListener(echo, HttpLimits(max_connections_per_address=1))
    listener.reconfigure(
        HttpLimits(max_connections_per_address=1, max_connections=3),
        proxies=TrustedProxies(["127.0.0.2"]),
    )
    await listener.listen(HOST, 0)
    try:
        async with connected(listener, "127.0.0.2") as one, connected(listener, "127.0.0.2") as two:
            for client in (one, two):
                client.get()
                assert (await client.answer()).status == 200
            async with connected(listener) as three, connected(listener) as four:
                three.get()
                assert (await three.answer()).status == 200
                assert (await four.answer()).status == 503
    finally:
        await listener.aclose(0)


# Upgraded connections


UPGRADE = "Connection: Upgrade", "Upgrade: echo"


@on_both_loops
async def test_a_connection_may_be_upgraded() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.get("/", *UPGRADE)
        client.send(b"early")
        stream = (await handler.next()).upgrade(((b"upgrade", b"echo"),))
        assert await client.head() == (101, {b"upgrade": b"echo", b"connection": b"Upgrade"})
        assert await stream.receive() == b"early"
        receiving = asyncio.create_task(stream.receive())
        assert await is_stuck(receiving)
        client.send(b"GET / HTTP/1.1")
        assert await receiving == b"GET / HTTP/1.1"
        client.writer.write_eof()
        assert await stream.receive() is None
        await stream.send(b"bye")
        await stream.aclose()
        await stream.aclose()
        assert await client.rest() == b"bye"
        with pytest.raises(ConnectionLost):
            await stream.send(b"late")


@on_both_loops
async def test_a_stream_waits_for_a_slow_client() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.get("/", *UPGRADE)
        stream = (await handler.next()).upgrade()
        await client.head()
        sending = asyncio.create_task(stream.send(bytes(BIG)))
        assert await is_stuck(sending)
        await client.reader.readexactly(BIG)
        await sending


@on_both_loops
async def test_a_stream_ends_with_its_client() -> None:
    async with conversing(handler := QueueingHandler(), HttpLimits(write_timeout=SOON)) as client:
        client.get("/", *UPGRADE)
        exchange = await handler.next()
        stream = exchange.upgrade()
        await client.head()
        client.stop_reading()
        receiving = asyncio.create_task(stream.receive())
        with pytest.raises(ConnectionLost):
            await stream.send(bytes(BIG))
        assert await receiving is None
        assert not handler.disconnected.is_set()


async def test_a_disconnected_client_cannot_be_upgraded() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.get("/", *UPGRADE)
        exchange = await handler.next()
        client.reset()
        await handler.disconnected.wait()
        stream = exchange.upgrade()
        assert await stream.receive() is None
        with pytest.raises(ConnectionLost):
            await stream.send(b"late")
        await stream.aclose()


@on_both_loops
async def test_a_stream_of_a_half_closed_client_can_be_read_to_its_end() -> None:
    limits = HttpLimits(half_closed_timeout=HANG_TIMEOUT)
    async with conversing(handler := QueueingHandler(), limits) as client:
        client.get("/", *UPGRADE)
        client.send(b"early")
        exchange = await handler.next()
        client.writer.write_eof()
        await settle()
        stream = exchange.upgrade()
        assert await stream.receive() == b"early"
        assert await stream.receive() is None
        await stream.send(b"bye")
        await stream.aclose()
        assert (await client.rest()).endswith(b"\r\n\r\nbye")


async def test_closing_a_stream_drops_what_was_not_received() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.get("/", *UPGRADE)
        client.send(b"early")
        stream = (await handler.next()).upgrade()
        await stream.aclose()
        assert await stream.receive() is None


@on_both_loops
async def test_an_ignored_upgrade_offer_is_a_normal_request() -> None:
    async with conversing(echo) as client:
        client.get("/a", *UPGRADE)
        client.send(bytes(BIG // 8))
        status, headers, body = await client.answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"/a")
        assert await client.rest() == b""


async def test_a_stream_is_cut_off_when_closing_takes_too_long() -> None:
    async with serving(handler := QueueingHandler()) as listener, connected(listener) as client:
        client.get("/", *UPGRADE)
        stream = (await handler.next()).upgrade()
        await listener.aclose(SOON)
        assert await stream.receive() is None


# The handler may fail.


@on_both_loops
async def test_an_exception_becomes_a_response_without_details() -> None:
    def fail(exchange: HttpExchange) -> None:
        if exchange.request.path == "/bad":
            raise ValueError("a secret")
        echo(exchange)

    incidents: list[Incident] = []
    listener = HttpListener(fail, report=incidents.append)
    await listener.listen(HOST, 0)
    async with connected(listener) as client, connected(listener) as other:
        client.get("/bad")
        status, _, body = await client.answer()
        for good in (client, other):
            good.get("/good")
            assert (await good.answer()).body == b"/good"
    await listener.aclose(0)
    (incident,) = incidents
    assert (incident.method, str(incident.error)) == ("GET /bad", "a secret")
    assert (status, body) == (500, f"internal error, incident {incident.id}".encode())


async def test_an_exception_in_a_started_response_truncates_it() -> None:
    def fail(exchange: HttpExchange) -> None:
        exchange.begin(200)
        raise ValueError

    def report(incident: Incident) -> None:
        raise OSError("no room for logs")

    listener = HttpListener(fail, report=report)
    await listener.listen(HOST, 0)
    async with connected(listener) as client:
        client.get()
        assert (await client.cut()).endswith(b"transfer-encoding: chunked\r\n\r\n")
    await listener.aclose(0)


async def test_an_exception_after_the_response_changes_nothing() -> None:
    def fail(exchange: HttpExchange) -> None:
        echo(exchange)
        raise ValueError

    listener = HttpListener(fail, report=lambda _: None)
    await listener.listen(HOST, 0)
    async with connected(listener) as client:
        for _ in range(2):
            client.get("/a")
            assert (await client.answer()).body == b"/a"
    await listener.aclose(0)


# The listener itself.


@on_both_loops
async def test_it_may_listen_on_several_addresses() -> None:
    async with serving(echo) as listener:
        await listener.listen(HOST, 0)
        await listener.listen(HOST, 0)
        assert len({port for _, port in listener.addresses}) == 3
        for host, port in listener.addresses:
            reader, writer = await asyncio.open_connection(host, port)
            client = Client(reader, writer)
            client.get("/a")
            assert (await client.answer()).body == b"/a"
            writer.transport.abort()
    assert listener.addresses == []


@on_both_loops
async def test_closing_ends_idle_connections_and_finishes_exchanges() -> None:
    async with (
        serving(handler := QueueingHandler()) as listener,
        connected(listener) as idle,
        connected(listener) as busy,
        connected(listener) as halfway,
    ):
        busy.get("/busy")
        exchange = await handler.next()
        halfway.send(b"GET /halfway HTTP/1.1\r\n")
        while listener.connections < 3:
            await asyncio.sleep(0)
        await settle()
        address = listener.addresses[0]
        closing = asyncio.create_task(listener.aclose(60))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        assert await is_stuck(closing)
        exchange.respond(200)
        assert (await busy.answer()).headers[b"connection"] == b"close"
        halfway.send(b"Host: a\r\n\r\n")
        (await handler.next()).respond(200)
        assert (await halfway.answer()).headers[b"connection"] == b"close"
        await closing
    assert listener.connections == 0


@on_both_loops
async def test_a_client_that_has_just_connected_may_send_its_request_while_closing() -> None:
    limits = HttpLimits(first_request_grace=60)
    async with serving(echo, limits) as listener, connected(listener) as client:
        while listener.connections < 1:
            await asyncio.sleep(0)
        closing = asyncio.create_task(listener.aclose(60))
        assert await is_stuck(closing)
        client.get("/first")
        assert (await client.answer()).body == b"/first"
        assert await client.rest() == b""
        await closing


@on_both_loops
async def test_closing_aborts_exchanges_after_the_grace_period() -> None:
    async with serving(handler := QueueingHandler()) as listener, connected(listener) as client:
        client.get()
        await handler.next()
        await listener.aclose(SOON)
        await client.cut()
        await handler.disconnected.wait()
        assert listener.connections == 0
        await listener.aclose(SOON)


@on_both_loops
async def test_a_streamed_response_may_finish_while_closing() -> None:
    async with serving(handler := QueueingHandler()) as listener, connected(listener) as client:
        client.get()
        exchange = await handler.next()
        exchange.begin(200)
        closing = asyncio.create_task(listener.aclose(60))
        await settle()
        await exchange.send(b"hi")
        exchange.finish()
        assert (await client.answer()).body == b"hi"
        assert await client.rest() == b""
        await closing


@on_both_loops
async def test_it_speaks_tls(tmp_path: Path) -> None:
    listener = HttpListener(handler := QueueingHandler())
    await listener.listen(HOST, 0, ssl=server_tls(tmp_path))
    port = listener.addresses[0][1]
    for _ in range(2):
        reader, writer = await asyncio.open_connection(HOST, port, ssl=client_tls())
        client = Client(reader, writer)
        client.get()
        (await handler.next()).respond(200, (), b"hi")
        assert (await client.answer()).body == b"hi"
        client.send(b"nonsense\r\n\r\n")
        assert (await client.answer()).status == 400
        assert await client.rest() == b""
        writer.close()
    await listener.aclose(1)


@on_both_loops
async def test_a_client_that_closes_is_disconnected_at_once_over_tls(tmp_path: Path) -> None:
    listener = HttpListener(handler := QueueingHandler(), HttpLimits(half_closed_timeout=60))
    await listener.listen(HOST, 0, ssl=server_tls(tmp_path))
    port = listener.addresses[0][1]
    _, writer = await asyncio.open_connection(HOST, port, ssl=client_tls())
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await handler.next()
    writer.close()
    await handler.disconnected.wait()
    await listener.aclose(0)


def another_certificate() -> tuple[str, str]:
    """Return a certificate for 127.0.0.1, made up now, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "another")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return certificate.public_bytes(pem).decode(), key.private_bytes(pem, form, plain).decode()


@on_both_loops
async def test_new_connections_get_the_current_certificate(tmp_path: Path) -> None:
    listener = HttpListener(handler := QueueingHandler())
    await listener.listen(HOST, 0, ssl=server_tls(tmp_path))
    port = listener.addresses[0][1]
    reader, writer = await asyncio.open_connection(HOST, port, ssl=client_tls())
    before = Client(reader, writer)
    for file, text in zip(("c", "k"), another_certificate(), strict=True):
        (tmp_path / file).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "c", tmp_path / "k")
    listener.reconfigure(HttpLimits(), tls)
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(HOST, port, ssl=client_tls())
    trusting = ssl.create_default_context(cafile=str(tmp_path / "c"))
    after = Client(*await asyncio.open_connection(HOST, port, ssl=trusting))
    listener.reconfigure(HttpLimits())  # other limits, and the same certificate
    for client in (before, after):  # existing connections stay
        client.get()
        (await handler.next()).respond(200, (), b"hi")
        assert (await client.answer()).body == b"hi"
        client.writer.close()
    await listener.aclose(1)


async def test_new_connections_have_the_current_limits() -> None:
    async with serving(handler := QueueingHandler()) as listener, connected(listener) as before:
        listener.reconfigure(HttpLimits(max_body=10, max_connections=2))
        async with connected(listener) as after, connected(listener) as one_too_many:
            for client in (before, after, one_too_many):
                client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n12345678901")
            (await handler.next()).respond(200, (), b"hi")
            assert (await before.answer()).status == 200
            assert (await after.answer()).status == 413
            assert (await one_too_many.answer()).status == 503
