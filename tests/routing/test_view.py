"""View: who sees what, and what of it is listed."""

from typing import Any

import pytest

from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind, Offer
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Catalog, Entry, Listing, merge
from trunkline.routing.view import View

ANNA = Caller(Principal("anna"), "2025-11-25", {}, Raw(b"{}"))
BERT = Caller(Principal("bert"), "2025-11-25", {}, Raw(b"{}"))


def offers(kind: Kind, *names: str) -> tuple[Offer, ...]:
    return tuple(Offer(kind, name, to_raw({kind.key: name})) for name in names)


CATALOG = merge(
    [
        Listing("fs", "fs", (*offers(Kind.TOOL, "read", "write"), *offers(Kind.PROMPT, "p"))),
        Listing("search", "search", offers(Kind.TOOL, "find_tools", "call_tool")),
    ]
)


def listed(view: View, caller: Caller = ANNA, kind: Kind = Kind.TOOL) -> list[str]:
    (found,) = from_raw(view.list_result(CATALOG, kind, caller), dict[str, Any]).values()
    return [offer["name"] for offer in found]


def entry(name: str) -> Entry:
    found = CATALOG.find(Kind.TOOL, name)
    assert found is not None
    return found


def no_writing(caller: Caller, entry: Entry) -> bool:
    return caller.principal.id == "anna" or entry.native != "write"


def test_without_a_word_everybody_sees_everything() -> None:
    view = View()
    assert view.list_result(CATALOG, Kind.TOOL, ANNA) is CATALOG.list_result(
        Kind.TOOL, ANNA.version
    )
    assert view.visible(ANNA, entry("fs__write"))
    assert view.shown(entry("fs__write"))


@pytest.mark.parametrize(
    ("surface", "names"),
    [((), []), (("*__re*",), ["fs__read"]), (("fs__write", "x"), ["fs__write"])],
)
def test_patterns_say_what_is_listed_beside_the_tools_that_search(
    surface: tuple[str, ...], names: list[str]
) -> None:
    view = View(surface, frozenset({"search"}))
    assert listed(view) == [*names, "search__find_tools", "search__call_tool"]
    assert listed(view, kind=Kind.PROMPT) == ["fs__p"]
    assert view.visible(ANNA, entry("fs__write"))


def test_a_list_is_written_once_for_each_catalogue() -> None:
    view = View(("fs__read",))
    first = view.list_result(CATALOG, Kind.TOOL, ANNA)
    assert view.list_result(CATALOG, Kind.TOOL, BERT) is first
    assert view.list_result(Catalog(), Kind.TOOL, ANNA) == to_raw({"tools": []})


def test_what_a_caller_may_not_see_is_not_on_its_list() -> None:
    view = View(visible=no_writing)
    assert "fs__write" in listed(view, ANNA)
    assert "fs__write" not in listed(view, BERT)
    assert not view.visible(BERT, entry("fs__write"))


def test_what_is_not_shown_is_not_on_the_list_of_those_who_may_see_it() -> None:
    view = View(("fs__*",), frozenset({"search"}), no_writing)
    assert listed(view, BERT) == ["fs__read", "search__find_tools", "search__call_tool"]


def test_only_the_call_tool_of_a_search_calls_another() -> None:
    view = View(searches=frozenset({"search"}))
    assert view.calls_another(entry("search__call_tool"))
    assert not view.calls_another(entry("search__find_tools"))
    assert not View().calls_another(entry("search__call_tool"))


def test_what_is_stopped_is_not_listed_but_known() -> None:
    view = View()
    assert view.offered(ANNA, entry("fs__write"))
    view.stops = lambda caller, entry: entry.native == "write" and caller is ANNA
    assert "fs__write" not in listed(view, ANNA)
    assert "fs__write" in listed(view, BERT)
    assert not view.offered(ANNA, entry("fs__write"))
    assert view.visible(ANNA, entry("fs__write"))
    view.stops = None
    assert "fs__write" in listed(view, ANNA)
