"""What each caller sees, and the caches of those decisions."""

from typing import Any

import pytest

from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller, Principal
from trunkline.routing.catalog import Catalog, CatalogEntry, FeatureListing, merge_listings
from trunkline.routing.visibility import (
    MAX_CACHED_CALLER_BYTES,
    MAX_CACHED_CALLERS,
    MAX_CACHED_LISTS,
    CallerCache,
    Visibility,
)


def caller_named(client: bytes = b"{}") -> Caller:
    return Caller(LOCAL_PRINCIPAL, "2025-11-25", {}, Raw(client))


def test_equal_callers_are_distinguished() -> None:
    cache, one, other = CallerCache[str](), caller_named(), caller_named()
    assert cache.store(one, "one") == ("one", one)
    assert cache.get(id(one)) == ("one", one)
    assert cache.get(id(other)) is None


def test_a_cached_caller_is_kept_alive() -> None:
    cache = CallerCache[int]()
    for number in range(MAX_CACHED_CALLERS):
        cache.store(caller_named(), number)
    assert [found for found, _ in cache.values()] == [*range(MAX_CACHED_CALLERS)]


def test_the_caller_cache_is_bounded() -> None:
    cache = CallerCache[int]()
    for number in range(3 * MAX_CACHED_CALLERS):
        cache.store(caller_named(), number)
        assert len(cache) <= MAX_CACHED_CALLERS


def test_a_caller_with_a_large_envelope_is_not_cached() -> None:
    cache, long = (
        CallerCache[int](),
        caller_named(b'{"name":"%s"}' % (b"x" * MAX_CACHED_CALLER_BYTES)),
    )
    assert cache.store(long, 7) == (7, long)
    assert not cache


ANNA = Caller(Principal("anna"), "2025-11-25", {}, Raw(b"{}"))
BERT = Caller(Principal("bert"), "2025-11-25", {}, Raw(b"{}"))
CARL = Caller(Principal("carl"), "2025-11-25", {}, Raw(b"{}"))


def features_of(kind: FeatureKind, *names: str) -> tuple[Feature, ...]:
    return tuple(Feature(kind, name, to_raw({kind.key: name})) for name in names)


CATALOG = merge_listings(
    [
        FeatureListing(
            "fs",
            "fs",
            (
                *features_of(FeatureKind.TOOL, "read", "write"),
                *features_of(FeatureKind.PROMPT, "p"),
            ),
        ),
        FeatureListing(
            "search", "search", features_of(FeatureKind.TOOL, "find_tools", "call_tool")
        ),
    ]
)


def listed(
    view: Visibility, caller: Caller = ANNA, kind: FeatureKind = FeatureKind.TOOL
) -> list[str]:
    (found,) = from_raw(view.list_result(CATALOG, kind, caller), dict[str, Any]).values()
    return [feature["name"] for feature in found]


def entry(name: str) -> CatalogEntry:
    found = CATALOG.find(FeatureKind.TOOL, name)
    assert found is not None
    return found


class NoWriting:
    """Only Anna may see the tools that write."""

    def is_visible(self, caller: Caller, entry: CatalogEntry) -> bool:
        return caller.principal.id == "anna" or entry.native_name != "write"

    def visibility_key(self, caller: Caller) -> str:
        return caller.principal.id


def test_by_default_everybody_sees_everything() -> None:
    view = Visibility()
    assert view.list_result(CATALOG, FeatureKind.TOOL, ANNA) is CATALOG.list_result(
        FeatureKind.TOOL, ANNA.version
    )
    assert view.is_visible(ANNA, entry("fs__write"))
    assert view.is_listed(entry("fs__write"))


@pytest.mark.parametrize(
    ("surface", "names"),
    [((), []), (("*__re*",), ["fs__read"]), (("fs__write", "x"), ["fs__write"])],
)
def test_surface_patterns_select_what_is_listed_beside_the_search_tools(
    surface: tuple[str, ...], names: list[str]
) -> None:
    view = Visibility(surface, frozenset({"search"}))
    assert listed(view) == [*names, "search__find_tools", "search__call_tool"]
    assert listed(view, kind=FeatureKind.PROMPT) == ["fs__p"]
    assert view.is_visible(ANNA, entry("fs__write"))


def test_a_list_is_encoded_once_per_catalogue() -> None:
    view = Visibility(("fs__read",))
    first = view.list_result(CATALOG, FeatureKind.TOOL, ANNA)
    assert view.list_result(CATALOG, FeatureKind.TOOL, BERT) is first
    assert view.list_result(Catalog(), FeatureKind.TOOL, ANNA) == to_raw({"tools": []})


def test_invisible_features_are_not_listed() -> None:
    view = Visibility(policy=NoWriting())
    assert "fs__write" in listed(view, ANNA)
    assert "fs__write" not in listed(view, BERT)
    assert not view.is_visible(BERT, entry("fs__write"))
    assert not view.is_uniform
    assert not view.is_unrestricted


def test_disabled_features_are_not_listed_but_exist() -> None:
    view = Visibility()
    assert view.is_uniform
    assert view.disabled_check is None
    assert "fs__read" in listed(view, CARL)
    view.disabled_check = lambda caller, entry: caller is CARL and entry.native_name == "read"
    assert "fs__read" not in listed(view, CARL)
    assert "fs__read" in listed(view, ANNA)
    assert not view.is_uniform
    assert view.disabled_check is not None
    assert view.is_visible(CARL, entry("fs__read"))
    assert not view.is_offered(CARL, entry("fs__read"))
    view.disabled_check = None
    assert "fs__read" in listed(view, CARL)


def test_unlisted_features_are_not_listed_for_callers_who_may_see_them() -> None:
    view = Visibility(("fs__*",), frozenset({"search"}), NoWriting())
    assert listed(view, BERT) == ["fs__read", "search__find_tools", "search__call_tool"]


def test_a_list_is_encoded_once_for_all_who_see_the_same() -> None:
    view = Visibility(policy=NoWriting())
    first = [view.list_result(CATALOG, FeatureKind.TOOL, caller) for caller in (ANNA, BERT)]
    again = [view.list_result(CATALOG, FeatureKind.TOOL, caller) for caller in (ANNA, BERT)]
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert first[0] is not first[1]


def test_lists_are_encoded_again_after_invalidation() -> None:
    view = Visibility(policy=NoWriting())
    first = view.list_result(CATALOG, FeatureKind.TOOL, ANNA)
    view.invalidate()
    assert view.list_result(CATALOG, FeatureKind.TOOL, ANNA) is not first
    assert view.list_result(Catalog(), FeatureKind.TOOL, ANNA) == to_raw({"tools": []})


def test_the_list_cache_is_bounded() -> None:
    view = Visibility(policy=NoWriting())
    first = view.list_result(CATALOG, FeatureKind.TOOL, ANNA)
    for number in range(MAX_CACHED_LISTS - 1):
        caller_named = Caller(Principal(f"p{number}"), "2025-11-25", {}, Raw(b"{}"))
        view.list_result(CATALOG, FeatureKind.TOOL, caller_named)
    assert view.list_result(CATALOG, FeatureKind.TOOL, ANNA) is first
    view.list_result(CATALOG, FeatureKind.TOOL, BERT)
    assert view.list_result(CATALOG, FeatureKind.TOOL, ANNA) is not first


def test_a_backend_exists_for_callers_who_see_any_of_its_features() -> None:
    write = merge_listings([FeatureListing("w", "w", features_of(FeatureKind.TOOL, "write"))])
    assert Visibility().can_see_backend(write, BERT, "w")
    view = Visibility(policy=NoWriting())
    assert view.can_see_backend(write, ANNA, "w")
    assert not view.can_see_backend(write, BERT, "w")
    assert view.can_see_backend(CATALOG, BERT, "fs")
    assert not view.can_see_backend(CATALOG, BERT, "other")


def test_only_call_tool_of_a_search_backend_calls_another_tool() -> None:
    view = Visibility(search_backends=frozenset({"search"}))
    assert view.is_call_tool(entry("search__call_tool"))
    assert not view.is_call_tool(entry("search__find_tools"))
    assert not Visibility().is_call_tool(entry("search__call_tool"))


def test_disabled_features_are_not_offered_but_visible() -> None:
    view = Visibility()
    assert view.is_offered(ANNA, entry("fs__write"))
    view.disabled_check = lambda caller, entry: entry.native_name == "write" and caller is ANNA
    assert "fs__write" not in listed(view, ANNA)
    assert "fs__write" in listed(view, BERT)
    assert not view.is_offered(ANNA, entry("fs__write"))
    assert view.is_visible(ANNA, entry("fs__write"))
    view.disabled_check = None
    assert "fs__write" in listed(view, ANNA)


def test_visibility_is_decided_once_per_caller() -> None:
    callers: list[Caller] = []

    class Counting:
        def is_visible(self, caller: Caller, entry: CatalogEntry) -> bool:
            callers.append(caller)
            return caller is ANNA and entry.kind is FeatureKind.TOOL

        def visibility_key(self, caller: Caller) -> str:
            return caller.principal.id

    visibility_cache = Visibility(policy=Counting()).make_cache()
    assert visibility_cache is not None
    for _ in range(2):
        assert visibility_cache.is_visible(ANNA, entry("fs__write"))
        assert not visibility_cache.is_visible(BERT, entry("fs__write"))
    assert callers == [ANNA, BERT]
    assert Visibility().make_cache() is None
