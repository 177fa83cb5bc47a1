"""View: who sees what, and what of it is listed."""

from typing import Any

import pytest

from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind, Offer
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Catalog, Entry, Listing, merge
from trunkline.routing.view import MOST, View

ANNA = Caller(Principal("anna"), "2025-11-25", {}, Raw(b"{}"))
BERT = Caller(Principal("bert"), "2025-11-25", {}, Raw(b"{}"))
CARL = Caller(Principal("carl"), "2025-11-25", {}, Raw(b"{}"))


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


class NoWriting:
    """Lets nobody but Anna see what writes."""

    def sees(self, caller: Caller, entry: Entry) -> bool:
        return caller.principal.id == "anna" or entry.native != "write"

    def key(self, caller: Caller) -> str:
        return caller.principal.id


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
    view = View(sight=NoWriting())
    assert "fs__write" in listed(view, ANNA)
    assert "fs__write" not in listed(view, BERT)
    assert not view.visible(BERT, entry("fs__write"))
    assert not view.alike
    assert not view.plain


def test_what_is_stopped_is_not_on_the_list_and_there_all_the_same() -> None:
    view = View()
    assert view.alike
    assert view.stops is None
    assert "fs__read" in listed(view, CARL)
    view.stops = lambda caller, entry: caller is CARL and entry.native == "read"
    assert "fs__read" not in listed(view, CARL)
    assert "fs__read" in listed(view, ANNA)
    assert not view.alike
    assert view.stops is not None
    assert view.visible(CARL, entry("fs__read"))
    assert not view.offered(CARL, entry("fs__read"))
    view.stops = None
    assert "fs__read" in listed(view, CARL)


def test_what_is_not_shown_is_not_on_the_list_of_those_who_may_see_it() -> None:
    view = View(("fs__*",), frozenset({"search"}), NoWriting())
    assert listed(view, BERT) == ["fs__read", "search__find_tools", "search__call_tool"]


def test_a_list_is_written_once_for_all_who_see_the_same() -> None:
    view = View(sight=NoWriting())
    first = [view.list_result(CATALOG, Kind.TOOL, caller) for caller in (ANNA, BERT)]
    again = [view.list_result(CATALOG, Kind.TOOL, caller) for caller in (ANNA, BERT)]
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert first[0] is not first[1]


def test_lists_are_written_anew_when_callers_may_see_something_else() -> None:
    view = View(sight=NoWriting())
    first = view.list_result(CATALOG, Kind.TOOL, ANNA)
    view.forget()
    assert view.list_result(CATALOG, Kind.TOOL, ANNA) is not first
    assert view.list_result(Catalog(), Kind.TOOL, ANNA) == to_raw({"tools": []})


def test_only_so_many_lists_are_kept() -> None:
    view = View(sight=NoWriting())
    first = view.list_result(CATALOG, Kind.TOOL, ANNA)
    for number in range(MOST - 1):
        somebody = Caller(Principal(f"p{number}"), "2025-11-25", {}, Raw(b"{}"))
        view.list_result(CATALOG, Kind.TOOL, somebody)
    assert view.list_result(CATALOG, Kind.TOOL, ANNA) is first
    view.list_result(CATALOG, Kind.TOOL, BERT)
    assert view.list_result(CATALOG, Kind.TOOL, ANNA) is not first


def test_a_backend_is_there_for_those_who_may_see_some_of_it() -> None:
    write = merge([Listing("w", "w", offers(Kind.TOOL, "write"))])
    assert View().knows(write, BERT, "w")
    view = View(sight=NoWriting())
    assert view.knows(write, ANNA, "w")
    assert not view.knows(write, BERT, "w")
    assert view.knows(CATALOG, BERT, "fs")
    assert not view.knows(CATALOG, BERT, "other")


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


def test_who_sees_an_offer_is_asked_once_for_each_who_calls_it() -> None:
    asked: list[Caller] = []

    class Counting:
        def sees(self, caller: Caller, entry: Entry) -> bool:
            asked.append(caller)
            return caller is ANNA and entry.kind is Kind.TOOL

        def key(self, caller: Caller) -> str:
            return caller.principal.id

    onlookers = View(sight=Counting()).onlookers()
    assert onlookers is not None
    for _ in range(2):
        assert onlookers.visible(ANNA, entry("fs__write"))
        assert not onlookers.visible(BERT, entry("fs__write"))
    assert asked == [ANNA, BERT]
    assert View().onlookers() is None
