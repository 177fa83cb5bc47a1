"""Registries of others: asked, read leniently, believed only as far as their keys go."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.test_raw import JSON
from tests.sources.registries import PUBKEY, TREE, category, signed, tree
from tests.sources.test_keys import SIGNER
from trunkline.jsonrpc import ConnectionLost
from trunkline.sources import peers as module
from trunkline.sources.matching import Matching
from trunkline.sources.model import Endorsement
from trunkline.sources.peers import STALE, PeerRefused, Peers, fetch_over_https, read_peer

MATCHING = Matching()


def endorsement(**changes: str) -> Endorsement:
    made = {"pubkey": PUBKEY, "url": "https://peer.example/r.json", "since": "2026-01-01"}
    return Endorsement(**(made | changes))


def read(value: object, pubkey: str = PUBKEY) -> module.PeerRegistry:
    return read_peer(json.dumps(value).encode(), pubkey, MATCHING)


@pytest.mark.holds("O1.7")
def test_what_is_strange_in_a_peer_is_left_out_and_the_rest_is_used() -> None:
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


def test_a_signature_of_a_peer_is_that_of_the_key_that_is_endorsed() -> None:
    assert read(signed(SIGNER), SIGNER.pubkey).is_signed
    with pytest.raises(PeerRefused, match="expected a signature of the key"):
        read(signed(SIGNER) | {"version": "6.6.6"}, SIGNER.pubkey)
    with pytest.raises(PeerRefused, match="expected the registry of the key that is endorsed"):
        read(signed(SIGNER), PUBKEY)
    with pytest.raises(PeerRefused, match="expected the registry of the key"):
        read(tree(curator="Ada"))


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000, b'"x"'])
def test_what_is_no_registry_is_refused(data: bytes) -> None:
    with pytest.raises(PeerRefused, match="expected a registry in JSON"):
        read_peer(data, PUBKEY, MATCHING)


@given(JSON, st.sampled_from(["version", "categories", "signature", "endorsements"]))
def test_any_peer_is_read_or_refused(value: Any, key: str) -> None:
    try:
        read(tree() | {key: value})
    except PeerRefused:
        assert key == "signature"


class Answers:
    """Stands for the internet."""

    def __init__(self, **answers: bytes | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def fetch(self, url: str) -> bytes:
        name = url.split("/")[2].split(".", maxsplit=1)[0]
        self.asked.append(name)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer


GOOD = json.dumps(TREE).encode()


@pytest.mark.holds("O1.13")
async def test_peers_are_asked_and_one_bad_peer_is_one_bad_peer() -> None:
    answers = Answers(good=GOOD, bad=b"{", gone=ConnectionLost("gone: nobody is there"))
    peers = Peers(MATCHING, answers.fetch)
    wanted = [
        endorsement(url="https://good.example/r"),
        endorsement(url="https://bad.example/r", name="Bad"),
        endorsement(url="https://gone.example/r"),
    ]
    peers.endorse(wanted, "0" * 64)
    now = asyncio.get_running_loop().time()
    assert [peer.state(now) for peer in peers.all] == ["pending"] * 3
    await peers.poll()
    now = asyncio.get_running_loop().time()
    assert [peer.state(now) for peer in peers.all] == ["fresh", "unreachable", "unreachable"]
    assert [peer.problem for peer in peers.all] == [
        None,
        "expected a registry in JSON",
        "gone: nobody is there",
    ]
    assert [peer.name for peer in peers.all] == ["Ada", "Bad", PUBKEY]


@pytest.mark.holds("O1.13")
async def test_what_was_fetched_is_kept_and_stale_after_an_hour() -> None:
    answers = Answers(peer=GOOD)
    peers = Peers(MATCHING, answers.fetch)
    peers.endorse([endorsement()], "0" * 64)
    await peers.poll()
    answers.answers["peer"] = ConnectionLost("peer.example:443: no")
    await peers.poll()
    (peer,) = peers.all
    assert peer.registry is not None
    assert peer.state(peer.fetched + STALE - 1) == "fresh"
    assert peer.state(peer.fetched + STALE + 1) == "stale"
    assert peer.problem == "peer.example:443: no"


@pytest.mark.holds("O1.13")
async def test_nobody_endorses_themselves_and_what_is_known_of_others_stays() -> None:
    answers = Answers(peer=GOOD)
    peers = Peers(MATCHING, answers.fetch)
    peers.endorse([endorsement()], PUBKEY)
    assert peers.all == ()
    peers.endorse([endorsement()], "0" * 64)
    await peers.poll()
    (known,) = peers.all
    other = endorsement(pubkey=SIGNER.pubkey, url="https://other.example/r")
    peers.endorse([other, endorsement()], "0" * 64)
    assert peers.all[1] is known
    peers.endorse([other], "0" * 64)
    assert [peer.endorsement for peer in peers.all] == [other]


@pytest.mark.holds("O1.13")
async def test_a_peer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.0)

    async def for_ever(url: str) -> bytes:
        await asyncio.Event().wait()
        return b""

    peers = Peers(MATCHING, for_ever)
    peers.endorse([endorsement()], "0" * 64)
    async with asyncio.timeout(5):
        await peers.poll()
    assert peers.all[0].problem == "no answer within 0 s"


@pytest.mark.holds("O1.13")
async def test_peers_are_asked_at_the_start_again_in_time_and_when_there_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers(peer=GOOD, other=GOOD)
    peers = Peers(MATCHING, answers.fetch)
    polled: asyncio.Queue[int] = asyncio.Queue()
    poll = peers.poll

    async def counted() -> None:
        await poll()
        polled.put_nowait(len(answers.asked))

    monkeypatch.setattr(peers, "poll", counted)
    running = asyncio.create_task(peers.run())
    async with asyncio.timeout(5):
        assert await polled.get() == 0
        peers.endorse([endorsement()], "0" * 64)
        assert await polled.get() == 1
        monkeypatch.setattr(module, "POLL", 0.0)
        peers.endorse([endorsement(), endorsement(url="https://other.example/")], "0" * 64)
        assert await polled.get() == 3
        assert await polled.get() == 5
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def web(answer: bytes) -> AsyncGenerator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/r.json"


def answer(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_an_answer_is_fetched_over_http() -> None:
    async with asyncio.timeout(5), web(answer("200 OK", GOOD)) as url:
        assert await fetch_over_https(url, lambda _: True) == GOOD


@pytest.mark.holds("O1.13")
@pytest.mark.parametrize("status", ["404 Not Found", "302 Found", "500 Oops"])
async def test_no_redirect_is_followed_and_no_error_taken_for_an_answer(status: str) -> None:
    location = "location: http://127.0.0.1/"
    async with asyncio.timeout(5), web(answer(status, b"", location)) as url:
        with pytest.raises(PeerRefused, match=f"expected status 200, got {status[:3]}"):
            await fetch_over_https(url, lambda _: True)


async def test_an_answer_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY", 10)
    async with asyncio.timeout(5), web(answer("200 OK", GOOD)) as url:
        with pytest.raises(ConnectionLost):
            await fetch_over_https(url, lambda _: True)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "[::1]", "[::ffff:192.168.0.1]", "localhost"],
)
async def test_private_addresses_are_refused(host: str) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionLost, match="its address is not allowed"):
            await fetch_over_https(f"https://{host}/r.json")


def test_topics_of_a_peer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CATEGORIES", 2)
    many = {f"t{n}": category("t", "T", ("a", "b", "c")) for n in range(5)}
    assert len(read(tree(categories=many)).categories) == 2
