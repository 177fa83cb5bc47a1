"""Registries of other curators: polled, read leniently, and trusted by their keys."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_values import JSON
from tests.sources.registries import PUBKEY, TREE, category, signed, tree
from tests.sources.test_signing import SIGNER
from tests.tasks import hang_guard
from trunkline.jsonrpc import ConnectionLost
from trunkline.sources.federation import (
    STALE_AFTER,
    PeerLimits,
    PeerPoller,
    PeerRegistry,
    PeerRejected,
    fetch_over_https,
    read_peer,
)
from trunkline.sources.model import Endorsement
from trunkline.sources.topics import MatchSettings

SETTINGS = MatchSettings()


def endorsement(**changes: str) -> Endorsement:
    made = {"pubkey": PUBKEY, "url": "https://peer.example/r.json", "since": "2026-01-01"}
    return Endorsement(**(made | changes))


def read(value: object, pubkey: str = PUBKEY) -> PeerRegistry:
    return read_peer(json.dumps(value).encode(), pubkey, SETTINGS)


@pytest.mark.holds("O1.7")
def test_invalid_topics_of_a_peer_are_left_out_and_the_rest_is_used() -> None:
    good = TREE["categories"]["rust-learning"]
    odd = json.loads(json.dumps(good)) | {"votes": 3}
    odd["sources"][0]["stars"] = 5
    found = read(
        tree(
            version="one",
            future={"a": 1},
            categories={
                "good": good,
                "odd": odd,
                "Bad Slug": good,
                "two": good | {"sources": good["sources"][:2]},
                "ranks": good | {"sources": [good["sources"][0]] * 3},
                "lines": good | {"name": "A\n2. Fake"},
                "newline": good | {"name": "A\n"},
                "nothing": None,
                "number": {"sources": 3},
            },
        )
    )
    assert sorted(found.categories) == ["good", "odd"]
    assert (found.version, found.curator, found.is_signed) == ("", "Ada", False)


def test_a_peer_must_be_signed_by_the_endorsed_key() -> None:
    assert read(signed(SIGNER), SIGNER.pubkey).is_signed
    with pytest.raises(PeerRejected, match="expected a signature of the key"):
        read(signed(SIGNER) | {"version": "6.6.6"}, SIGNER.pubkey)
    with pytest.raises(PeerRejected, match="expected the registry of the key that is endorsed"):
        read(signed(SIGNER), PUBKEY)
    with pytest.raises(PeerRejected, match="expected the registry of the key"):
        read(tree(curator="Ada"))


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000, b'"x"'])
def test_a_response_that_is_not_a_registry_is_rejected(data: bytes) -> None:
    with pytest.raises(PeerRejected, match="expected a registry in JSON"):
        read_peer(data, PUBKEY, SETTINGS)


@given(JSON, st.sampled_from(["version", "categories", "signature", "endorsements"]))
def test_any_peer_registry_is_read_or_rejected(value: Any, key: str) -> None:
    try:
        read(tree() | {key: value})
    except PeerRejected:
        assert key == "signature"


class FakeWeb:
    """Fetches prepared responses, by the first label of the host name."""

    def __init__(self, **responses: bytes | Exception) -> None:
        self.responses = responses
        self.fetched: list[str] = []

    async def fetch(self, url: str) -> bytes:
        name = url.split("/")[2].split(".", maxsplit=1)[0]
        self.fetched.append(name)
        response = self.responses[name]
        if isinstance(response, Exception):
            raise response
        return response


GOOD = json.dumps(TREE).encode()


@pytest.mark.holds("O1.13")
async def test_a_bad_peer_does_not_affect_the_others() -> None:
    web = FakeWeb(good=GOOD, bad=b"{", gone=ConnectionLost("gone: connection refused"))
    peers = PeerPoller(SETTINGS, web.fetch)
    endorsed = [
        endorsement(url="https://good.example/r"),
        endorsement(url="https://bad.example/r", name="Bad"),
        endorsement(url="https://gone.example/r"),
    ]
    peers.set_endorsements(endorsed, "0" * 64)
    now = asyncio.get_running_loop().time()
    assert [peer.state(now) for peer in peers.all] == ["pending"] * 3
    await peers.poll()
    now = asyncio.get_running_loop().time()
    assert [peer.state(now) for peer in peers.all] == ["fresh", "unreachable", "unreachable"]
    assert [peer.problem for peer in peers.all] == [
        None,
        "expected a registry in JSON",
        "gone: connection refused",
    ]
    assert [peer.name for peer in peers.all] == ["Ada", "Bad", PUBKEY]


@pytest.mark.holds("O1.13")
async def test_a_fetched_registry_is_kept_and_stale_after_an_hour() -> None:
    web = FakeWeb(peer=GOOD)
    peers = PeerPoller(SETTINGS, web.fetch)
    peers.set_endorsements([endorsement()], "0" * 64)
    await peers.poll()
    web.responses["peer"] = ConnectionLost("peer.example:443: no")
    await peers.poll()
    (peer,) = peers.all
    assert peer.registry is not None
    assert peer.state(peer.fetched_at + STALE_AFTER - 1) == "fresh"
    assert peer.state(peer.fetched_at + STALE_AFTER + 1) == "stale"
    assert peer.problem == "peer.example:443: no"


@pytest.mark.holds("O1.13")
async def test_self_endorsement_is_ignored_and_fetched_registries_are_kept() -> None:
    web = FakeWeb(peer=GOOD)
    peers = PeerPoller(SETTINGS, web.fetch)
    peers.set_endorsements([endorsement()], PUBKEY)
    assert peers.all == ()
    peers.set_endorsements([endorsement()], "0" * 64)
    await peers.poll()
    (fetched,) = peers.all
    other = endorsement(pubkey=SIGNER.pubkey, url="https://other.example/r")
    peers.set_endorsements([other, endorsement()], "0" * 64)
    assert peers.all[1] is fetched
    peers.set_endorsements([other], "0" * 64)
    assert [peer.endorsement for peer in peers.all] == [other]


@pytest.mark.holds("O1.13")
async def test_a_slow_peer_times_out() -> None:
    async def never(url: str) -> bytes:
        await asyncio.Event().wait()
        return b""

    peers = PeerPoller(SETTINGS, never, PeerLimits(timeout=0.0))
    peers.set_endorsements([endorsement()], "0" * 64)
    async with hang_guard():
        await peers.poll()
    assert peers.all[0].problem == "no answer within 0 s"


class CountingPoller(PeerPoller):
    """Records the number of fetches after each poll."""

    def __init__(self, web: FakeWeb, limits: PeerLimits) -> None:
        super().__init__(SETTINGS, web.fetch, limits)
        self.web = web
        self.fetches: asyncio.Queue[int] = asyncio.Queue()

    async def poll(self) -> None:
        await super().poll()
        self.fetches.put_nowait(len(self.web.fetched))


@asynccontextmanager
async def running(limits: PeerLimits) -> AsyncGenerator[CountingPoller]:
    peers = CountingPoller(FakeWeb(peer=GOOD, other=GOOD), limits)
    task = asyncio.create_task(peers.run())
    async with hang_guard():
        yield peers
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.holds("O1.13")
async def test_peers_are_polled_at_start_and_when_they_change() -> None:
    async with running(PeerLimits()) as peers:
        assert await peers.fetches.get() == 0
        peers.set_endorsements([endorsement()], "0" * 64)
        assert await peers.fetches.get() == 1
        peers.set_endorsements([endorsement(), endorsement(url="https://other.example/")], "0" * 64)
        assert await peers.fetches.get() == 3


@pytest.mark.holds("O1.13")
async def test_peers_are_polled_again_after_the_interval() -> None:
    async with running(PeerLimits(poll_interval=0.0)) as peers:
        peers.set_endorsements([endorsement()], "0" * 64)
        assert await peers.fetches.get() == 1
        assert await peers.fetches.get() == 2


@asynccontextmanager
async def http_server(response: bytes) -> AsyncGenerator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/r.json"


def http_response(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_a_registry_is_fetched_over_http() -> None:
    async with hang_guard(), http_server(http_response("200 OK", GOOD)) as url:
        assert await fetch_over_https(url, lambda _: True) == GOOD


@pytest.mark.holds("O1.13")
@pytest.mark.parametrize("status", ["404 Not Found", "302 Found", "500 Oops"])
async def test_redirects_and_error_statuses_are_rejected(status: str) -> None:
    location = "location: http://127.0.0.1/"
    async with hang_guard(), http_server(http_response(status, b"", location)) as url:
        with pytest.raises(PeerRejected, match=f"expected status 200, got {status[:3]}"):
            await fetch_over_https(url, lambda _: True)


async def test_a_response_that_is_too_long_is_rejected() -> None:
    limits = PeerLimits(max_bytes=10)
    async with hang_guard(), http_server(http_response("200 OK", GOOD)) as url:
        with pytest.raises(ConnectionLost):
            await fetch_over_https(url, lambda _: True, limits)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "[::1]", "[::ffff:192.168.0.1]", "localhost"],
)
async def test_private_addresses_are_refused(host: str) -> None:
    async with hang_guard():
        with pytest.raises(ConnectionLost, match="its address is not allowed"):
            await fetch_over_https(f"https://{host}/r.json")


def test_topics_of_a_peer_are_bounded() -> None:
    many = {f"t{n}": category("t", "T", ("a", "b", "c")) for n in range(5)}
    data = json.dumps(tree(categories=many)).encode()
    assert len(read_peer(data, PUBKEY, SETTINGS, max_categories=2).categories) == 2
