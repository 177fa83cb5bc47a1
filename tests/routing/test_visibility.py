"""What each caller sees."""

import hashlib
from typing import Any

import pytest

from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.catalog import CatalogEntry, FeatureListing, merge_listings
from trunkline.routing.visibility import Visibility

ANNA = Caller(Principal("anna"), V2025_11_25, {}, Raw(b"{}"))
BERT = Caller(Principal("bert"), V2025_11_25, {}, Raw(b"{}"))
CARL = Caller(Principal("carl"), V2025_11_25, {}, Raw(b"{}"))


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
    (found,) = from_raw(view.write_list(CATALOG, kind, caller), dict[str, Any]).values()
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


def test_by_default_all_callers_see_everything() -> None:
    view = Visibility()
    assert len(listed(view)) == 4
    assert view.is_visible(ANNA, entry("fs__write"))
    assert view.is_listed(entry("fs__write"))


@pytest.mark.parametrize(
    ("surface", "names"),
    [((), []), (("*__re*",), ["fs__read"]), (("fs__write", "x"), ["fs__write"])],
)
def test_surface_patterns_select_which_tools_are_listed_with_the_search_tools(
    surface: tuple[str, ...], names: list[str]
) -> None:
    view = Visibility(surface, frozenset({"search"}))
    assert listed(view) == [*names, "search__find_tools", "search__call_tool"]
    assert listed(view, kind=FeatureKind.PROMPT) == ["fs__p"]
    assert view.is_visible(ANNA, entry("fs__write"))


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


def test_a_backend_exists_for_callers_who_see_any_of_its_features() -> None:
    write = merge_listings([FeatureListing("w", "w", features_of(FeatureKind.TOOL, "write"))])
    assert Visibility().can_see_backend(write, BERT, "w")
    view = Visibility(policy=NoWriting())
    assert view.can_see_backend(write, ANNA, "w")
    assert not view.can_see_backend(write, BERT, "w")
    assert view.can_see_backend(CATALOG, BERT, "fs")
    assert not view.can_see_backend(CATALOG, BERT, "other")


def test_a_backend_is_listed_if_a_caller_is_offered_one_of_its_features() -> None:
    features = features_of(FeatureKind.TOOL, "read", "write")
    write = merge_listings(
        [FeatureListing("w", "w", features[1:]), FeatureListing("r", "r", features)]
    )
    assert Visibility().listed_backends(write, BERT) == {"w", "r"}
    assert Visibility(policy=NoWriting()).listed_backends(write, BERT) == {"r"}
    assert Visibility(("w__*",)).listed_backends(write, ANNA) == {"w"}


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


def test_the_id_of_a_surface_is_equal_for_callers_whom_the_policy_treats_alike() -> None:
    class ByName:
        def is_visible(self, caller: Caller, entry: CatalogEntry) -> bool:
            return True

        def visibility_key(self, caller: Caller) -> str:
            return "c" if caller is CARL else "other"

    view = Visibility(policy=ByName())
    assert view.surface_id(ANNA) == view.surface_id(BERT) != view.surface_id(CARL)
    # It is recorded, so it must be the same in every process.
    assert view.surface_id(CARL) == hashlib.sha256(b"'c'").hexdigest()[:12]
    assert Visibility().surface_id(ANNA) == ""


def test_callers_who_see_the_same_lists_are_in_one_group() -> None:
    assert Visibility().list_group(ANNA) == Visibility().list_group(BERT)
    view = Visibility(policy=NoWriting())
    assert len({view.list_group(caller) for caller in (ANNA, BERT, CARL, ANNA)}) == 3
    switched = Visibility()
    switched.disabled_check = lambda caller, entry: caller is CARL
    assert switched.list_group(ANNA) != switched.list_group(CARL)
