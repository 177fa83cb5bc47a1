"""The tools of the registry, called as the gateway calls them, and their results."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.backends.test_functions import SilentClient
from tests.contexts import call_of, start_call
from tests.sources.registries import PUBKEY, TREE, category, signed, tree, write
from tests.sources.test_federation import FakeWeb, endorsement
from tests.sources.test_registry_cache import rewrite
from tests.sources.test_signing import SIGNER
from tests.tasks import hang_guard
from trunkline.documents.errors import ConfigErrors
from trunkline.jsonrpc import RpcError, from_raw, to_raw
from trunkline.mcp.versions import V2025_06_18, V2025_11_25, Revision
from trunkline.sources.federation import STALE_AFTER, PeerPoller, RegistryPeer
from trunkline.sources.registry_cache import CachedRegistry, ChangeLogStatus, RegistryCache
from trunkline.sources.registry_file import LoadedRegistry, parse_registry
from trunkline.sources.tools import (
    FederatedMatch,
    SourcesBackend,
    categories_result,
    endorsements_result,
    federated_result,
    format_sources,
    no_match_result,
    provenance_result,
    sources_reply,
)
from trunkline.sources.topics import MatchSettings, TopicFinder, TopicScore

OLDER, NEWER = V2025_06_18, V2025_11_25


class ObservedPoller(PeerPoller):
    """Signals when the first poll, which the backend starts, is over."""

    def __init__(self, web: FakeWeb) -> None:
        super().__init__(MatchSettings(), web.fetch)
        self.polled = asyncio.Event()

    async def poll(self) -> None:
        await super().poll()
        self.polled.set()


class BackendClient:
    """A backend and a client that calls it."""

    def __init__(
        self, path: Path, settings: MatchSettings | None = None, **responses: bytes | Exception
    ) -> None:
        self.path = path
        self.web = FakeWeb(**responses)
        self.peers = ObservedPoller(self.web)
        cache = RegistryCache(path, settings, check_interval=0.0)
        self.backend = SourcesBackend(cache, self.peers)

    async def call(self, name: str, revision: Revision = NEWER, /, **arguments: Any) -> Any:
        client = SilentClient(revision)
        params = to_raw({"name": name, "arguments": arguments, "_meta": {"x/y": 1}})
        return from_raw(await start_call(self.backend, call_of(client, params)), object)

    async def text(self, name: str, /, **arguments: Any) -> str:
        return (await self.call(name, **arguments))["content"][0]["text"]


@asynccontextmanager
async def started(
    folder: Path,
    value: Any = TREE,
    settings: MatchSettings | None = None,
    **responses: bytes | Exception,
) -> AsyncGenerator[BackendClient]:
    made = BackendClient(write(folder / "a.json", value), settings, **responses)
    async with hang_guard():
        await made.backend.start()
        yield made
        await made.backend.aclose()


@pytest.mark.holds("O1.3", "O1.4", "M14")
async def test_five_tools_are_offered_with_schemas_examples_and_hints(tmp_path: Path) -> None:
    async with started(tmp_path) as made:
        tools = [
            from_raw(o.definition, dict[str, Any])
            for o in (await made.backend.list_features()).features
        ]
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
    async with started(tmp_path) as made:
        offers = (await made.backend.list_features()).features
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
    ("query", "expected"),
    [
        ("trust", "Closest match: rust-learning (score: 0.37). Available categories: bitcoin-node"),
        ("", "The query is empty. Available categories: bitcoin-node-setup, home-automation-priv"),
        ("how to do it", "The query has only stop words, such as 'how' and 'the'. Av"),
    ],
)
async def test_a_query_that_means_no_topic_is_a_tool_error(
    tmp_path: Path, query: str, expected: str
) -> None:
    async with started(tmp_path) as made:
        for tool in ("get_sources", "get_federated_sources"):
            result = await made.call(tool, query=query)
            assert result["isError"] is True
            assert expected in result["content"][0]["text"]
            assert "structuredContent" not in result


@pytest.mark.holds("O1.11", "M14")
async def test_a_threshold_argument_is_used_and_checked(tmp_path: Path) -> None:
    async with started(tmp_path) as made:
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
    async with started(tmp_path) as made:
        with pytest.raises(RpcError) as caught:
            await made.call(tool, OLDER, **arguments)
        assert caught.value.code == -32602
        assert (await made.call(tool, **arguments))["isError"] is True


@pytest.mark.holds("M14")
async def test_tools_work_with_a_registry_without_topics(tmp_path: Path) -> None:
    async with started(tmp_path, tree(categories={})) as made:
        assert (await made.call("list_categories"))["structuredContent"]["count"] == 0
        assert "Available categories: none" in await made.text("get_sources", query="rust")
        assert "Available categories: none" in await made.text("get_federated_sources", query="a")


@pytest.mark.holds("M14", "O1.12")
async def test_provenance_names_the_curator_and_what_was_verified(tmp_path: Path) -> None:
    async with started(tmp_path, signed(SIGNER)) as made:
        result = await made.call("get_provenance")
    assert "Signature: valid" in result["content"][0]["text"]
    assert result["structuredContent"]["curator"]["name"] == "Ada"
    assert result["structuredContent"]["signed"] is True


@pytest.mark.holds("S1.33")
async def test_tools_use_the_changed_file(tmp_path: Path) -> None:
    async with started(tmp_path) as made:
        rewrite(made.path, tree(categories={"new": category("new", "New", ("a", "b", "c"))}))
        assert "Categories (1):" in await made.text("list_categories")
        rewrite(made.path, "{")
        assert "Categories (1):" in await made.text("list_categories")
        assert (await made.call("get_provenance"))["structuredContent"]["behind"] is True


async def test_a_bad_registry_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors):
        await BackendClient(write(tmp_path / "a.json", {})).backend.start()


def peer(name: str, pubkey: str = SIGNER.pubkey) -> dict[str, str]:
    url = f"https://{name}.example/r"
    return {"pubkey": pubkey, "url": url, "name": name.title(), "since": "2026-01-01"}


KNITTING = category("knitting-socks", "Knitting Socks", ("knit socks", "sock wool", "sock heel"))


@pytest.mark.holds("O1.3", "O1.13", "M14")
async def test_peer_results_come_after_our_own_and_are_marked(tmp_path: Path) -> None:
    categories = {
        "knitting-socks": KNITTING,
        "rust-learning": TREE["categories"]["rust-learning"],
    }
    theirs = json.dumps(signed(SIGNER, categories=categories, version="7.0.0")).encode()
    ours = tree(endorsements=[peer("bob"), peer("self", PUBKEY)])
    async with started(tmp_path, ours, bob=theirs) as made:
        await made.peers.polled.wait()
        assert made.web.fetched == ["bob"]
        found = await made.call("get_federated_sources", query="learn rust")
        assert [
            (each["origin"], each["registry"], each["stale"], each["match"]["version"])
            for each in found["structuredContent"]["matches"]
        ] == [("direct", "Ada", False, "1.2.3"), ("endorsed", "Bob", False, "7.0.0")]
        text = await made.text("get_federated_sources", query="knit socks")
        assert text.startswith("[endorsed] Bob\nCategory: Knitting Socks\n")
        (known,) = made.peers.all
        known.fetched_at -= STALE_AFTER + 1
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

    def watched(finder: TopicFinder, query: str, threshold: float | None = None) -> TopicScore:
        threads.append(threading.current_thread().name)
        return find(finder, query, threshold)

    monkeypatch.setattr(TopicFinder, "find", watched)
    async with started(tmp_path) as made:
        await made.call("get_sources", query="learn rust")
    async with started(tmp_path, settings=MatchSettings(large_text_count=10)) as made:
        await made.call("get_sources", query="learn rust")
        await made.call("get_federated_sources", query="learn rust")
    main = threading.main_thread().name
    assert [name == main for name in threads] == [True, False, False]


async def test_an_unreachable_peer_has_no_results(tmp_path: Path) -> None:
    ours = tree(endorsements=[peer("bob")])
    async with started(tmp_path, ours, bob=ValueError("refused")) as made:
        await made.peers.polled.wait()
        found = await made.call("get_federated_sources", query="learn rust")
        assert found["structuredContent"]["count"] == 1
        assert "State: unreachable (refused)" in await made.text("get_endorsements")


async def test_no_task_is_left_behind(tmp_path: Path) -> None:
    async with started(tmp_path) as made:
        pass
    await made.backend.wait_ended()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    unstarted = BackendClient(made.path)
    await unstarted.backend.aclose()


LOADED = parse_registry(json.dumps(TREE), "a.json")


@pytest.mark.holds("O1.5")
def test_sources_are_listed_by_rank() -> None:
    turned = tree()
    turned["categories"]["rust-learning"]["sources"].reverse()
    loaded = parse_registry(json.dumps(turned), "a.json")
    reply = sources_reply(loaded, TopicScore("rust-learning", 0.123456))
    assert reply.score == 0.1235
    assert format_sources(reply) == (
        "Category: Rust Learning\n"
        "Slug: rust-learning\n"
        "Description: All about Rust Learning.\n"
        "\n"
        "Registry Version: 1.2.3\n"
        f"Curator: Ada ({PUBKEY})\n"
        "\n"
        "Sources:\n"
        "\n"
        "1. Rust Learning 1\n"
        "   URL: https://rust-learning.example/1\n"
        "   Type: documentation\n"
        "   Why: It is number 1.\n"
        "\n"
        "2. Rust Learning 2\n"
        "   URL: https://rust-learning.example/2\n"
        "   Type: documentation\n"
        "   Why: It is number 2.\n"
        "\n"
        "3. Rust Learning 3\n"
        "   URL: https://rust-learning.example/3\n"
        "   Type: documentation\n"
        "   Why: It is number 3.\n"
    )


@pytest.mark.holds("O1.5")
def test_no_match_names_the_closest_and_all_topics() -> None:
    answer = no_match_result("q", TopicScore("b", 0.321), ["c", "a", "b"])
    assert answer.is_error
    assert answer.structured is None
    assert answer.text == (
        "No matching category found for query 'q'. Closest match: b (score: 0.32). "
        "Available categories: a, b, c"
    )
    for nothing in (None, TopicScore("a", 0.0)):
        text = no_match_result("q", nothing, []).text
        assert text == "No matching category found for query 'q'. Available categories: none"


@pytest.mark.holds("O1.5")
def test_categories_are_listed_by_slug() -> None:
    answer = categories_result(LOADED)
    assert answer.text.startswith(
        "Categories (10):\n\nbitcoin-node-setup: Bitcoin Node Setup\n   All about Bitcoin Node"
    )
    slugs = [each.slug for each in answer.structured.categories]
    assert slugs == sorted(TREE["categories"])


def cached(log: ChangeLogStatus | None = None, loaded: LoadedRegistry = LOADED) -> CachedRegistry:
    return CachedRegistry(loaded, TopicFinder({}, MatchSettings()), log)


def test_provenance_says_what_was_verified() -> None:
    text = provenance_result(cached(), is_outdated=False).text
    assert f"Curator: Ada ({PUBKEY})\nSignature: none\nDigest: sha256:" in text
    assert "Change Log: none\nCategories: 10\n" in text
    good = provenance_result(cached(ChangeLogStatus(3, "abc")), is_outdated=True).text
    assert "Change Log: 3 entries, chain and signatures valid, ends with abc\n" in good
    assert "the file has changed and is not valid" in good
    bad = provenance_result(cached(ChangeLogStatus(problem="line 2: no")), is_outdated=False).text
    assert "Change Log: NOT VALID: line 2: no\n" in bad


def test_endorsements_are_listed_with_their_state() -> None:
    assert endorsements_result([], 0.0).text == "Endorsements (0):\n"
    peer = RegistryPeer(endorsement(name="Bob"))
    peer.problem = "no answer"
    answer = endorsements_result([peer], 0.0)
    assert answer.text == (
        f"Endorsements (1):\n\nBob\n   Key: {PUBKEY}\n   URL: https://peer.example/r.json\n"
        "   Since: 2026-01-01\n   State: unreachable (no answer)\n"
    )
    assert answer.structured.endorsements[0].state == "unreachable"


@pytest.mark.holds("O1.13")
def test_matches_of_several_registries_are_marked() -> None:
    reply = sources_reply(LOADED, TopicScore("rust-learning", 0.5))
    answer = federated_result(
        [
            FederatedMatch("direct", "Ada", PUBKEY, False, reply),
            FederatedMatch("endorsed", "Bob", PUBKEY, True, reply),
        ]
    )
    assert answer.text.startswith("[direct] Ada\nCategory: Rust Learning\n")
    assert "\n\n[endorsed] Bob [STALE]\nCategory: Rust Learning\n" in answer.text
    assert answer.structured.count == 2
