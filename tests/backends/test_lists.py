"""All that a server offers, page by page, however many pages it says there are."""

from typing import Any

import pytest

from tests.gateway.servers import tool
from trunkline.backends import lists
from trunkline.backends.lists import read_lists
from trunkline.jsonrpc import ConnectionLost, Raw, RpcError, to_raw
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.offer import Kind

TOOLS: dict[str, Any] = {"tools": {}}
KEPT = {"ttlMs": 5000, "cacheScope": "public"}


class Pages:
    """A server that answers page by page; the last page is for whatever cursor comes."""

    def __init__(self, *pages: Any) -> None:
        self.pages = list(pages)
        self.asked: list[tuple[str, Any]] = []

    async def __call__(self, method: str, params: dict[str, Any]) -> Raw:
        self.asked.append((method, params.get("cursor", "none")))
        page = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        if isinstance(page, Exception):
            raise page
        return to_raw(page)


async def test_nothing_is_asked_of_who_declares_nothing() -> None:
    ask = Pages()
    assert await read_lists(ask, {"logging": {}}) == ((), Freshness(), ())
    assert ask.asked == []


async def test_every_kind_that_is_declared_is_listed() -> None:
    ask = Pages(
        {"tools": [tool("t")]},
        {"prompts": [{"name": "p"}]},
        {"resources": [{"uri": "a:b", "name": "r"}]},
        {"resourceTemplates": [{"uriTemplate": "a:{x}", "name": "r"}]},
    )
    found = await read_lists(ask, {"tools": {}, "prompts": {}, "resources": {}})
    assert [(offer.kind, offer.key) for offer in found.offers] == [
        (Kind.TOOL, "t"),
        (Kind.PROMPT, "p"),
        (Kind.RESOURCE, "a:b"),
        (Kind.TEMPLATE, "a:{x}"),
    ]


async def test_all_that_was_read_may_be_kept_as_long_as_any_part_of_it() -> None:
    pages: list[dict[str, Any]] = [
        {"tools": [], "nextCursor": "x", **KEPT},
        {"tools": [], **KEPT, "ttlMs": 70},
    ]
    assert (await read_lists(Pages(*pages), TOOLS)).freshness == Freshness(70, True)
    pages[0]["cacheScope"] = "private"
    assert (await read_lists(Pages(*pages), TOOLS)).freshness == Freshness(70, False)
    assert (await read_lists(Pages({"tools": []}), TOOLS)).freshness == Freshness()


async def test_a_server_that_always_has_another_page_is_read_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Endless(Pages):
        async def __call__(self, method: str, params: dict[str, Any]) -> Raw:
            self.pages = [{"tools": [tool("a"), tool("b")], "nextCursor": f"{len(self.asked)}"}]
            return await super().__call__(method, params)

    monkeypatch.setattr(lists, "MAX_PAGES", 4)
    ask = Endless()
    assert len((await read_lists(ask, TOOLS)).offers) == 8
    assert len(ask.asked) == 4
    monkeypatch.setattr(lists, "MAX_OFFERS", 3)
    ask = Endless()
    assert len((await read_lists(ask, TOOLS)).offers) == 3
    assert len(ask.asked) == 2


async def test_what_nobody_can_use_is_left_out_and_said_to_be_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lists, "MAX_REMARKS", 3)
    ask = Pages({"tools": [tool(""), tool("a"), tool("a")]})
    assert (await read_lists(ask, TOOLS)).left_out == (
        "tools[0]: expected a string as 'name', and not an empty one",
        "tools: 'a' again: the first counts",
    )
    ask = Pages({"tools": [tool("")] * 2, "nextCursor": "1"}, {"tools": [tool("")] * 2})
    assert len((await read_lists(ask, TOOLS)).left_out) == 3


async def test_a_cursor_that_comes_back_is_the_end() -> None:
    ask = Pages({"tools": [tool("a")], "nextCursor": ""}, {"tools": [], "nextCursor": ""})
    assert len((await read_lists(ask, TOOLS)).offers) == 1
    assert ask.asked == [("tools/list", "none"), ("tools/list", "")]


async def test_one_that_declares_too_much_has_none_of_it() -> None:
    assert await read_lists(Pages(RpcError.method_not_found()), TOOLS) == ((), Freshness(), ())


@pytest.mark.parametrize(
    "why", [RpcError(-32603, "no"), ConnectionLost("gone"), {"prompts": []}, {"tools": 7}, []]
)
async def test_a_list_that_cannot_be_read_is_a_failure(why: Any) -> None:
    with pytest.raises((RpcError, ConnectionLost, ValueError)):
        await read_lists(Pages(why), TOOLS)


@pytest.mark.parametrize("why", [RpcError(-32603, "no"), {}, {"resourceTemplates": 7}])
async def test_one_that_has_resources_need_not_have_templates(why: Any) -> None:
    ask = Pages({"resources": [{"uri": "a:b", "name": "r"}]}, why)
    assert len((await read_lists(ask, {"resources": {}})).offers) == 1
