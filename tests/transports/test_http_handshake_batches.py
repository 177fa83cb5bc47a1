"""Batches, which one revision has: each entry is a call of its own, and the answer is one."""

from typing import Any

from tests.jsonrpc.test_channel import tidy
from tests.transports.exchanges import Gate, House, call, note
from tests.transports.test_http_handshake import opened
from trunkline.transports.http_handshake import CANCELLED


@tidy
async def test_a_batch_is_answered_in_its_order_and_cancelled_by_the_entry() -> None:
    gate, slow = Gate(), Gate()
    async with opened(House("2025-03-26", wait=gate, slow=slow)) as door:
        session = door.begin()
        batch = [
            call(1, "slow"),
            note("a"),
            call(2, "ping"),
            {"jsonrpc": "2.0", "id": 3},
            call(4, "initialize"),
            call(5),
            call(5, "ping"),
            note("notifications/cancelled", requestId=5),
        ]
        paper = door.post(batch, session)
        await slow.begun.wait()
        slow.opened.set()
        await paper.answered.wait()
        found = [(each["id"], each.get("error", {}).get("code")) for each in paper.json]
        assert found == [
            (1, None),
            (2, None),
            (3, -32600),
            (4, -32600),
            (5, CANCELLED),
            (None, -32600),
        ]
        assert door.house.talks[0].heard == ["a", "notifications/cancelled"]
        assert gate.cancelled == 1


@tidy
async def test_a_batch_that_asks_for_nothing_is_accepted() -> None:
    async with opened(House("2025-03-26")) as door:
        session = door.begin()
        broken = {"jsonrpc": "2.0", "id": 1, "result": 1, "error": 2}
        for batch in ([note("a"), note("b")], [broken], [note("c"), broken]):
            paper = door.post(batch, session)
            assert (paper.status, paper.body) == (202, b"")


@tidy
async def test_what_is_said_in_the_course_of_a_batch_comes_before_its_answer() -> None:
    async def chat(request: Any, line: Any) -> Any:
        await line.notify("said", {"by": request.id})
        return {}

    async with opened(House("2025-03-26", chat=chat)) as door:
        session = door.begin()
        paper = door.post([call(1, "chat"), call(2, "chat")], session)
        await paper.answered.wait()
        assert [entry["params"]["by"] for entry in paper.data[:2]] == [1, 2]
        assert [entry["id"] for entry in paper.data[2]] == [1, 2]


@tidy
async def test_what_stands_alone_has_no_place_in_a_batch() -> None:
    async with opened(House("2025-03-26")) as door:
        enveloped = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
        batch = [call(1, "ping", **enveloped), call(2, "ping", _meta={}), call(3, "ping", _meta=7)]
        paper = door.post(batch, door.begin())
        await paper.answered.wait()
        found = [(each["id"], each.get("error", {}).get("code")) for each in paper.json]
        assert found == [(1, -32600), (2, None), (3, None)]


@tidy
async def test_a_batch_has_its_revision() -> None:
    for version in ("2024-11-05", "2025-06-18", "2025-11-25"):
        async with opened(House(version)) as door:
            paper = door.post([call(1, "ping")], door.begin())
            assert (paper.status, paper.code) == (400, -32600)
