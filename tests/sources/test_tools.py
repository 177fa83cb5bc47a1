"""The tools of the registry, called as a gateway calls them."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.backends.test_functions import Nobody
from tests.sources.registries import PUBKEY, TREE, category, signed, tree, write
from tests.sources.test_keys import SIGNER
from tests.sources.test_peers import Answers
from tests.sources.test_shelf import rewrite
from trunkline.documents.errors import ConfigErrors
from trunkline.jsonrpc import RpcError, from_raw, to_raw
from trunkline.mcp.meta import Params
from trunkline.routing.call import Call
from trunkline.sources import matching as matching_module
from trunkline.sources import shelf as shelf_module
from trunkline.sources.matching import Matching, Scored, TopicFinder
from trunkline.sources.peers import STALE, Peers
from trunkline.sources.shelf import Shelf
from trunkline.sources.tools import SourcesBackend

OLDER, NEWER = "2025-06-18", "2025-11-25"


class AskedPeers(Peers):
    """Tells when the first round of questions, which the backend itself begins, is over."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(Matching(), answers.fetch)
        self.polled = asyncio.Event()

    async def poll(self) -> None:
        await super().poll()
        self.polled.set()


class Desk:
    """A backend with somebody who calls it."""

    def __init__(self, path: Path, **answers: bytes | Exception) -> None:
        self.path = path
        self.answers = Answers(**answers)
        self.peers = AskedPeers(self.answers)
        self.backend = SourcesBackend(Shelf(path), self.peers)

    async def call(self, name: str, version: str = NEWER, /, **arguments: Any) -> Any:
        client = Nobody(version)
        params = Params(to_raw({"name": name, "arguments": arguments, "_meta": {"x/y": 1}}))
        made = Call(client.caller, 1, "tools/call", params)
        return from_raw(await self.backend.call(made, client), object)

    async def text(self, name: str, /, **arguments: Any) -> str:
        return (await self.call(name, **arguments))["content"][0]["text"]


@asynccontextmanager
async def desk(
    folder: Path, value: Any = TREE, **answers: bytes | Exception
) -> AsyncGenerator[Desk]:
    made = Desk(write(folder / "a.json", value), **answers)
    async with asyncio.timeout(10):
        await made.backend.start()
        yield made
        await made.backend.aclose()


@pytest.mark.holds("O1.3", "O1.4", "M14")
async def test_five_tools_are_offered_with_schemas_examples_and_hints(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        tools = [from_raw(o.definition, dict[str, Any]) for o in await made.backend.offers()]
    assert [tool["name"] for tool in tools] == [
        "get_sources",
        "list_categories",
        "get_provenance",
        "get_endorsements",
        "get_federated_sources",
    ]
    for tool in tools:
        assert "Example" in tool["description"]
        assert tool["inputSchema"]["additionalProperties"] is False
        assert tool["outputSchema"]["type"] == "object"
        assert tool["annotations"]["readOnlyHint"] is True
        jsonschema.Draft202012Validator.check_schema(tool["outputSchema"])
    assert tools[0]["inputSchema"]["required"] == ["query"]


@pytest.mark.holds("O1.3", "O1.5", "M14")
async def test_sources_come_as_text_and_as_structure(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        offers = await made.backend.offers()
        result = await made.call("get_sources", query="learn rust")
    assert result["content"][0]["text"].startswith("Category: Rust Learning\nSlug: rust-learning\n")
    found = result["structuredContent"]
    assert (found["slug"], found["score"]) == ("rust-learning", 0.5)
    assert [source["rank"] for source in found["sources"]] == [1, 2, 3]
    assert found["curator"] == {"name": "Ada", "pubkey": PUBKEY}
    schema = from_raw(offers[0].definition, dict[str, Any])["outputSchema"]
    jsonschema.validate(found, schema)


@pytest.mark.holds("O1.4", "O1.5", "O1.9", "M14")
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("trust", "Closest match: rust-learning (score: 0.37). Available categories: bitcoin-node"),
        ("", "The query is empty. Available categories: bitcoin-node-setup, home-automation-priv"),
        ("how to do it", "The query has only words that say nothing, such as 'how' and 'the'. Av"),
    ],
)
async def test_a_question_that_means_no_topic_is_an_error_of_the_tool(
    tmp_path: Path, query: str, said: str
) -> None:
    async with desk(tmp_path) as made:
        for tool in ("get_sources", "get_federated_sources"):
            result = await made.call(tool, query=query)
            assert result["isError"] is True
            assert said in result["content"][0]["text"]
            assert "structuredContent" not in result


@pytest.mark.holds("O1.11", "M14")
async def test_a_threshold_of_the_call_counts_and_is_within_bounds(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        refused = await made.call("get_sources", query="learn rust", threshold=0.99)
        assert refused["isError"] is True
        found = await made.call("get_sources", query="trust", threshold=0)
        assert found["structuredContent"]["slug"] == "rust-learning"
        for bad in (-0.1, 1.01, "0.5", True):
            with pytest.raises(RpcError) as caught:
                await made.call("get_sources", OLDER, query="learn rust", threshold=bad)
            assert caught.value.code == -32602


@pytest.mark.holds("O1.3", "O1.4")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("get_sources", {}),
        ("get_sources", {"query": 1}),
        ("get_sources", {"query": "rust", "limit": 3}),
        ("get_sources", {"query": "x" * 301}),
        ("list_categories", {"all": True}),
        ("get_provenance", {"query": "rust"}),
        ("get_endorsements", {"x": None}),
        ("get_federated_sources", {"query": "rust", "peers": []}),
    ],
)
async def test_arguments_are_strictly_checked(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    async with desk(tmp_path) as made:
        with pytest.raises(RpcError) as caught:
            await made.call(tool, OLDER, **arguments)
        assert caught.value.code == -32602
        assert (await made.call(tool, **arguments))["isError"] is True


@pytest.mark.holds("M14")
async def test_a_registry_without_topics_answers(tmp_path: Path) -> None:
    async with desk(tmp_path, tree(categories={})) as made:
        assert (await made.call("list_categories"))["structuredContent"]["count"] == 0
        assert "Available categories: none" in await made.text("get_sources", query="rust")
        assert "Available categories: none" in await made.text("get_federated_sources", query="a")


@pytest.mark.holds("M14", "O1.12")
async def test_provenance_names_the_curator_and_what_was_verified(tmp_path: Path) -> None:
    async with desk(tmp_path, signed(SIGNER)) as made:
        result = await made.call("get_provenance")
    assert "Signature: valid" in result["content"][0]["text"]
    assert result["structuredContent"]["curator"]["name"] == "Ada"
    assert result["structuredContent"]["signed"] is True


async def test_a_changed_file_is_what_tools_answer_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf_module, "LOOK_AGAIN", 0.0)
    async with desk(tmp_path) as made:
        rewrite(made.path, tree(categories={"new": category("new", "New", ("a", "b", "c"))}))
        assert "Categories (1):" in await made.text("list_categories")
        rewrite(made.path, "{")
        assert "Categories (1):" in await made.text("list_categories")
        assert (await made.call("get_provenance"))["structuredContent"]["behind"] is True


async def test_a_bad_registry_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors):
        await Desk(write(tmp_path / "a.json", {})).backend.start()


def peer(name: str, pubkey: str = SIGNER.pubkey) -> dict[str, str]:
    url = f"https://{name}.example/r"
    return {"pubkey": pubkey, "url": url, "name": name.title(), "since": "2026-01-01"}


KNITTING = category("knitting-socks", "Knitting Socks", ("knit socks", "sock wool", "sock heel"))


@pytest.mark.holds("O1.3", "O1.13", "M14")
async def test_peers_answer_after_our_own_and_are_marked(tmp_path: Path) -> None:
    categories = {
        "knitting-socks": KNITTING,
        "rust-learning": TREE["categories"]["rust-learning"],
    }
    theirs = json.dumps(signed(SIGNER, categories=categories, version="7.0.0")).encode()
    ours = tree(endorsements=[peer("bob"), peer("self", PUBKEY)])
    async with desk(tmp_path, ours, bob=theirs) as made:
        await made.peers.polled.wait()
        assert made.answers.asked == ["bob"]
        found = await made.call("get_federated_sources", query="learn rust")
        assert [
            (each["origin"], each["registry"], each["stale"], each["match"]["version"])
            for each in found["structuredContent"]["matches"]
        ] == [("direct", "Ada", False, "1.2.3"), ("endorsed", "Bob", False, "7.0.0")]
        text = await made.text("get_federated_sources", query="knit socks")
        assert text.startswith("[endorsed] Bob\nCategory: Knitting Socks\n")
        (known,) = made.peers.all
        known.fetched -= STALE + 1
        text = await made.text("get_federated_sources", query="knit socks")
        assert text.startswith("[endorsed] Bob [STALE]\n")
        listed = await made.call("get_endorsements")
        assert listed["structuredContent"]["endorsements"][0]["state"] == "stale"
        none = await made.text("get_federated_sources", query="quantum physics supercollider")
        assert "knitting-socks, linux-hardening" in none
        only_ours = await made.call("get_sources", query="knit socks")
        assert only_ours["isError"] is True


async def test_a_large_registry_keeps_the_event_loop_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    find = TopicFinder.find

    def watched(finder: TopicFinder, query: str, threshold: float | None = None) -> Scored:
        threads.append(threading.current_thread().name)
        return find(finder, query, threshold)

    monkeypatch.setattr(TopicFinder, "find", watched)
    async with desk(tmp_path) as made:
        await made.call("get_sources", query="learn rust")
        monkeypatch.setattr(matching_module, "_LARGE", 10)
        await made.call("get_sources", query="learn rust")
        await made.call("get_federated_sources", query="learn rust")
    main = threading.main_thread().name
    assert [name == main for name in threads] == [True, False, False]


async def test_a_peer_that_was_never_reached_says_nothing(tmp_path: Path) -> None:
    ours = tree(endorsements=[peer("bob")])
    async with desk(tmp_path, ours, bob=ValueError("nobody")) as made:
        await made.peers.polled.wait()
        found = await made.call("get_federated_sources", query="learn rust")
        assert found["structuredContent"]["count"] == 1
        assert "State: unreachable (nobody)" in await made.text("get_endorsements")


async def test_no_task_is_left_behind(tmp_path: Path) -> None:
    async with desk(tmp_path) as made:
        pass
    await made.backend.wait_ended()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    unstarted = Desk(made.path)
    await unstarted.backend.aclose()
