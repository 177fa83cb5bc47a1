"""Bodies over HTTP: authenticated before they are read, and limited while they arrive."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.auth.issuer import token
from tests.endpoints.exchanges import rpc_request
from tests.gateway.conftest import no_delays
from tests.gateway.servers import hello, make_gateway, one_tool
from tests.http_client import HOST
from tests.identities import AuthenticatedGateway, authenticated_gateway
from tests.tasks import hang_guard

__all__ = ["no_delays"]

MIB = 1024 * 1024


class Upload:
    """A POST whose head is sent before its body."""

    def __init__(self, guarded: AuthenticatedGateway, *lines: str, length: int = MIB) -> None:
        self._guarded = guarded
        head = [
            "POST /mcp HTTP/1.1",
            "host: localhost",
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            f"content-length: {length}",
            *lines,
        ]
        self._head = "\r\n".join([*head, "", ""]).encode()

    async def start(self) -> "Upload":
        self.reader, self.writer = await asyncio.open_connection(HOST, self._guarded.site.port)
        self._guarded.site.writers.append(self.writer)
        self.writer.write(self._head)
        return self

    async def status(self) -> int:
        """Read the response to the end of the connection; return its status."""
        self.response = await self.reader.read()
        return int(self.response.split(b" ")[1])


def reserved(guarded: AuthenticatedGateway) -> int:
    return guarded.site.router._body_budget.reserved  # pyright: ignore[reportPrivateUsage]


def authorization(subject: str = "ada", **claims: Any) -> str:
    return f"authorization: Bearer {token(sub=subject, **claims)}"


async def wait_until_reserved(guarded: AuthenticatedGateway, size: int) -> None:
    async with hang_guard():
        while reserved(guarded) != size:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([], 401),
        (["authorization: Bearer nonsense"], 401),
        ([authorization(aud="x")], 401),
        ([authorization(), "origin: https://evil.example"], 403),
        ([authorization(scope="other")], 403),
        (["transfer-encoding: gzip"], 400),
    ],
)
async def test_a_request_is_refused_before_its_body_is_read(lines: list[str], status: int) -> None:
    async with authenticated_gateway(make_gateway(), scopes=("mcp",)) as guarded:
        upload = await Upload(guarded, *lines).start()
        async with hang_guard():
            found = await upload.status()
        assert found == status
        assert reserved(guarded) == 0


async def test_an_oversized_body_is_refused_before_it_is_read() -> None:
    async with authenticated_gateway(make_gateway()) as guarded:
        upload = await Upload(guarded, authorization(), length=10**9).start()
        async with hang_guard():
            assert await upload.status() == 413


async def test_bodies_of_clients_without_a_token_are_not_buffered() -> None:
    async with authenticated_gateway(make_gateway()) as guarded:
        uploads = [await Upload(guarded, length=4 * MIB).start() for _ in range(20)]
        for upload in uploads:
            upload.writer.write(b"x" * (4 * MIB - 1))
        async with hang_guard():
            assert [await upload.status() for upload in uploads] == [401] * 20
        assert reserved(guarded) == 0


async def test_one_principal_cannot_use_all_of_the_receive_buffer() -> None:
    async with authenticated_gateway(
        make_gateway(), max_body=MIB, max_receive_buffer=8 * MIB
    ) as guarded:
        uploads = [await Upload(guarded, authorization()).start() for _ in range(2)]
        await wait_until_reserved(guarded, 2 * MIB)
        third = await Upload(guarded, authorization(jti="another")).start()
        async with hang_guard():
            assert await third.status() == 503
        assert b"retry-after: 1\r\n" in third.response
        other = await Upload(guarded, authorization("bob")).start()
        await wait_until_reserved(guarded, 3 * MIB)
        uploads[0].writer.close()
        await wait_until_reserved(guarded, 2 * MIB)
        await Upload(guarded, authorization()).start()
        await wait_until_reserved(guarded, 3 * MIB)
        other.writer.close()


async def test_an_accepted_body_gives_its_bytes_back() -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        body = str(rpc_request(1, "initialize", **hello())).replace("'", '"').encode()
        upload = await Upload(
            guarded, authorization(), "connection: close", length=len(body)
        ).start()
        await wait_until_reserved(guarded, len(body))
        upload.writer.write(body)
        async with hang_guard():
            assert await upload.status() == 200
        assert reserved(guarded) == 0


async def test_an_unfinished_websocket_message_counts_against_the_receive_buffer() -> None:
    async with authenticated_gateway(
        make_gateway(), max_body=MIB, max_receive_buffer=8 * MIB
    ) as guarded:
        url = f"ws://{HOST}:{guarded.site.port}/ws"
        header = {"authorization": f"Bearer {token()}"}

        async def send_half(size: int) -> Any:
            socket = await connect(url, additional_headers=header)

            async def pieces() -> AsyncGenerator[str]:
                yield "x" * size
                await asyncio.Event().wait()

            task = asyncio.create_task(socket.send(pieces()))
            return socket, task

        first, first_task = await send_half(MIB)
        await wait_until_reserved(guarded, MIB)
        second, second_task = await send_half(MIB + 1)
        async with hang_guard():
            with pytest.raises(ConnectionClosed) as closed:
                await second.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        await wait_until_reserved(guarded, MIB)
        first.transport.abort()
        await wait_until_reserved(guarded, 0)
        for task in (first_task, second_task):
            task.cancel()
        await asyncio.gather(first_task, second_task, return_exceptions=True)
