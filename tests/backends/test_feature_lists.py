"""Reading the feature lists of a server page by page, up to limits."""

from typing import Any

import pytest

from tests.gateway.servers import tool
from trunkline.backends.server_connection import FeatureListLimits, read_lists
from trunkline.gateway.backend import BackendFeatures
from trunkline.jsonrpc import ConnectionLost, Raw, RpcError, to_raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import FeatureKind

TOOLS: dict[str, Any] = {"tools": {}}
KEPT = {"ttlMs": 5000, "cacheScope": "public"}


class Pages:
    """A server with these pages; the last one answers any further cursor."""

    def __init__(self, *pages: Any) -> None:
        self.pages = list(pages)
        self.asked: list[tuple[str, Any]] = []

    async def __call__(self, method: str, params: dict[str, Any]) -> Raw:
        self.asked.append((method, params.get("cursor", "none")))
        page = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        if isinstance(page, Exception):
            raise page
        return to_raw(page)


async def test_a_client_without_capabilities_gets_no_request() -> None:
    ask = Pages()
    assert await read_lists(ask, {"logging": {}}) == BackendFeatures()
    assert ask.asked == []


async def test_every_declared_kind_is_listed() -> None:
    ask = Pages(
        {"tools": [tool("t")]},
        {"prompts": [{"name": "p"}]},
        {"resources": [{"uri": "a:b", "name": "r"}]},
        {"resourceTemplates": [{"uriTemplate": "a:{x}", "name": "r"}]},
    )
    found = await read_lists(ask, {"tools": {}, "prompts": {}, "resources": {}})
    assert [(offer.kind, offer.key) for offer in found.features] == [
        (FeatureKind.TOOL, "t"),
        (FeatureKind.PROMPT, "p"),
        (FeatureKind.RESOURCE, "a:b"),
        (FeatureKind.TEMPLATE, "a:{x}"),
    ]


async def test_lists_may_be_cached_as_long_as_their_shortest_page() -> None:
    pages: list[dict[str, Any]] = [
        {"tools": [], "nextCursor": "x", **KEPT},
        {"tools": [], **KEPT, "ttlMs": 70},
    ]
    assert (await read_lists(Pages(*pages), TOOLS)).cache_hints == CacheHints(70, True)
    pages[0]["cacheScope"] = "private"
    assert (await read_lists(Pages(*pages), TOOLS)).cache_hints == CacheHints(70, False)
    assert (await read_lists(Pages({"tools": []}), TOOLS)).cache_hints == CacheHints()


async def test_a_server_that_always_has_another_page_is_read_up_to_a_limit() -> None:
    class Endless(Pages):
        async def __call__(self, method: str, params: dict[str, Any]) -> Raw:
            self.pages = [{"tools": [tool("a"), tool("b")], "nextCursor": f"{len(self.asked)}"}]
            return await super().__call__(method, params)

    ask = Endless()
    assert len((await read_lists(ask, TOOLS, FeatureListLimits(max_pages=4))).features) == 8
    assert len(ask.asked) == 4
    ask = Endless()
    limits = FeatureListLimits(max_pages=4, max_features=3)
    assert len((await read_lists(ask, TOOLS, limits)).features) == 3
    assert len(ask.asked) == 2


async def test_unusable_features_are_skipped_and_reported_up_to_a_limit() -> None:
    limits = FeatureListLimits(max_skipped=3)
    ask = Pages({"tools": [tool(""), tool("a"), tool("a")]})
    assert (await read_lists(ask, TOOLS, limits)).skipped == (
        "tools[0]: expected a string as 'name', and not an empty one",
        "tools: 'a' again: the first counts",
    )
    ask = Pages({"tools": [tool("")] * 2, "nextCursor": "1"}, {"tools": [tool("")] * 2})
    assert len((await read_lists(ask, TOOLS, limits)).skipped) == 3


async def test_a_repeated_cursor_ends_the_list() -> None:
    ask = Pages({"tools": [tool("a")], "nextCursor": ""}, {"tools": [], "nextCursor": ""})
    assert len((await read_lists(ask, TOOLS)).features) == 1
    assert ask.asked == [("tools/list", "none"), ("tools/list", "")]


async def test_an_undeclared_list_that_fails_is_empty() -> None:
    assert await read_lists(Pages(RpcError.method_not_found()), TOOLS) == BackendFeatures()


@pytest.mark.parametrize(
    "why", [RpcError(-32603, "no"), ConnectionLost("gone"), {"prompts": []}, {"tools": 7}, []]
)
async def test_a_list_that_cannot_be_read_is_a_failure(why: Any) -> None:
    with pytest.raises((RpcError, ConnectionLost, ValueError)):
        await read_lists(Pages(why), TOOLS)


@pytest.mark.parametrize("why", [RpcError(-32603, "no"), {}, {"resourceTemplates": 7}])
async def test_a_server_with_resources_needs_no_templates(why: Any) -> None:
    ask = Pages({"resources": [{"uri": "a:b", "name": "r"}]}, why)
    assert len((await read_lists(ask, {"resources": {}})).features) == 1
