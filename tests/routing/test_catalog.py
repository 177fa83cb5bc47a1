"""The merge of all offers: every one callable, none renamed by those that come after."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import from_raw, to_raw
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.headers import HeaderParam
from trunkline.mcp.offer import Kind, Offer
from trunkline.routing.catalog import Catalog, Listing, merge


def offer(kind: Kind, key: str) -> Offer:
    return Offer(kind, key, to_raw({kind.key: key, "description": f"{key} of old"}))


def tools(backend: str, *names: str, prefix: str | None = None) -> Listing:
    prefix = backend if prefix is None else prefix
    return Listing(backend, prefix, tuple(offer(Kind.TOOL, name) for name in names))


def resources(backend: str, *uris: str, kind: Kind = Kind.RESOURCE) -> Listing:
    return Listing(backend, backend, tuple(offer(kind, uri) for uri in uris))


def names(catalog: Catalog, kind: Kind = Kind.TOOL) -> list[str]:
    return [entry.public for entry in catalog.entries(kind)]


def test_offers_come_in_the_order_of_the_configuration_behind_their_prefix() -> None:
    catalog = merge([tools("web", "get", "all"), tools("fs", "read")])
    assert names(catalog) == ["web__get", "web__all", "fs__read"]
    found = catalog.find(Kind.TOOL, "fs__read")
    assert found is not None
    assert (found.backend, found.native) == ("fs", "read")
    assert catalog.find(Kind.TOOL, "read") is None
    assert catalog.find(Kind.PROMPT, "fs__read") is None


def test_a_list_has_every_definition_under_its_public_name() -> None:
    catalog = merge([tools("fs", "read"), resources("fs", "file:///a")])
    assert from_raw(catalog.list_result(Kind.TOOL), object) == {
        "tools": [{"name": "fs__read", "description": "read of old"}]
    }
    assert bytes(catalog.list_result(Kind.PROMPT)) == b'{"prompts":[]}'


def test_a_list_is_written_once_for_each_revision_that_reads_it_otherwise() -> None:
    definition = to_raw({"name": "a", "outputSchema": {"type": "array"}})
    prompt = offer(Kind.PROMPT, "p")
    catalog = merge([Listing("x", "", (Offer(Kind.TOOL, "a", definition), prompt))])
    newest = catalog.list_result(Kind.TOOL)
    assert from_raw(newest) == {"tools": [{"name": "a", "outputSchema": {"type": "array"}}]}
    assert catalog.list_result(Kind.TOOL, "2026-07-28") is newest
    older = catalog.list_result(Kind.TOOL, "2025-11-25")
    assert from_raw(older) == {"tools": [{"name": "a"}]}
    assert catalog.list_result(Kind.TOOL, "2025-11-25") is older
    assert catalog.list_result(Kind.PROMPT, "2024-11-05") is catalog.list_result(Kind.PROMPT)


def test_of_two_equal_names_the_first_keeps_it_and_both_can_be_called() -> None:
    catalog = merge([tools("a", "get", prefix=""), tools("b", "get", "put", prefix="")])
    assert names(catalog) == ["get", "b__get", "put"]
    (collision,) = catalog.collisions
    assert (collision.wanted, collision.kept_by) == ("get", "a")
    assert (collision.renamed.public, collision.renamed.native) == ("b__get", "get")


def test_even_the_name_instead_may_be_taken() -> None:
    catalog = merge(
        [tools("x", "get", prefix=""), tools("y", "get", prefix="b"), tools("b", "get", prefix="")]
    )
    assert names(catalog)[:2] == ["get", "b__get"]
    last = catalog.find(Kind.TOOL, names(catalog)[2])
    assert last is not None
    assert (last.backend, last.native) == ("b", "get")


def test_a_backend_that_lists_something_twice_has_it_once() -> None:
    catalog = merge([tools("a", "get", "get")])
    assert names(catalog) == ["a__get"]
    assert catalog.collisions == ()


def test_a_resource_keeps_its_uri_and_equal_ones_are_told_apart() -> None:
    catalog = merge([resources("a", "file:///x"), resources("b", "file:///x", "file:///y")])
    assert names(catalog, Kind.RESOURCE) == ["file:///x", "trunkline:b:file:///x", "file:///y"]
    marked = catalog.find_reader("trunkline:b:file:///x")
    assert marked is not None
    assert (marked.backend, marked.native) == ("b", "file:///x")


def test_an_unlisted_resource_belongs_to_the_template_that_fits_best() -> None:
    catalog = merge(
        [
            resources("a", "file:///{path}", kind=Kind.TEMPLATE),
            resources("b", "file:///docs/{path}", "file:///{path}", kind=Kind.TEMPLATE),
        ]
    )
    cases = {
        "file:///x": ("a", "file:///x"),
        "file:///docs/x": ("b", "file:///docs/x"),
        "trunkline:b:file:///x": ("b", "file:///x"),
    }
    for uri, owner in cases.items():
        found = catalog.find_reader(uri)
        assert found is not None
        assert (found.backend, found.native) == owner
        assert found.public == uri
    assert catalog.find_reader("http://x") is None


def test_what_changed_is_named_by_kind() -> None:
    one = merge([tools("a", "x"), resources("a", "r:")])
    assert one == merge([tools("a", "x"), resources("a", "r:")])
    assert one != "catalog"
    assert one.changed_kinds(merge([tools("a", "y"), resources("a", "r:")])) == (Kind.TOOL,)
    assert merge([]).changed_kinds(one) == (Kind.TOOL, Kind.RESOURCE)
    assert Catalog().changed_kinds(merge([])) == ()


@pytest.mark.holds("T109")
def test_the_whole_may_be_kept_as_long_as_the_shortest_and_by_nobody_if_one_is_private() -> None:
    fresh = [Freshness(7, public=True), Freshness(5, public=True)]
    listings = [tools(str(n), "x")._replace(freshness=f) for n, f in enumerate(fresh)]
    assert merge(listings).freshness == Freshness(5, public=True)
    private = tools("p", "x")._replace(freshness=Freshness(9, public=False))
    assert merge([*listings, private]).freshness == Freshness(5, public=False)
    assert merge([*listings, tools("silent", "x")]).freshness == Freshness()
    assert merge([]).freshness == Freshness()


@pytest.mark.parametrize(
    ("header", "mirrors"),
    [("Region", (HeaderParam(b"mcp-param-region", ("r",), "string"),)), ("not a token", ())],
)
def test_a_tool_knows_which_arguments_are_repeated_in_headers(header: str, mirrors: Any) -> None:
    schema = {"properties": {"r": {"type": "string", "x-mcp-header": header}}}
    marked = to_raw({"name": "x", "uri": "u:", "inputSchema": schema})
    offers = (Offer(Kind.TOOL, "x", marked), Offer(Kind.RESOURCE, "u:", marked))
    catalog = merge([Listing("a", "a", offers)])
    (tool,), (resource,) = catalog.entries(Kind.TOOL), catalog.entries(Kind.RESOURCE)
    assert (tool.mirrors, resource.mirrors) == (mirrors, ())


KEYS = st.sampled_from(["get", "get ", "b__get", "__get", "x" * 70, "é", "a__b__get", "file:///a"])
LISTINGS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "a__b"]), st.sampled_from(["", "a", "b"]), st.lists(KEYS)),
    max_size=4,
    unique_by=lambda listing: listing[0],
)


@pytest.mark.parametrize("kind", list(Kind))
@given(LISTINGS)
def test_every_offer_can_be_called_and_comes_back_to_its_owner(
    kind: Kind, listings: list[tuple[str, str, list[str]]]
) -> None:
    made = [Listing(b, p, tuple(offer(kind, key) for key in keys)) for b, p, keys in listings]
    catalog = merge(made)
    owners = {(entry.backend, entry.native) for entry in catalog.entries(kind)}
    assert owners == {(backend, key) for backend, _, keys in listings for key in keys}
    listed: list[dict[str, Any]] = json.loads(bytes(catalog.list_result(kind)))[kind.value]
    assert [item[kind.key] for item in listed] == names(catalog, kind)
    assert (
        names(merge(made[:-1]), kind) == names(catalog, kind)[: len(merge(made[:-1]).entries(kind))]
    )
