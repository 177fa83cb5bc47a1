"""The merge of all features: every one can be called, and none is renamed by later ones."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.http_headers import HeaderParam
from trunkline.mcp.versions import REVISIONS, V2025_11_25, V2026_07_28, Revision
from trunkline.routing.catalog import Catalog, FeatureListing, merge_listings, write_list_result


def feature(kind: FeatureKind, key: str) -> Feature:
    return Feature(kind, key, to_raw({kind.key: key, "description": f"{key} of old"}))


def tools(backend: str, *names: str, prefix: str | None = None) -> FeatureListing:
    prefix = backend if prefix is None else prefix
    return FeatureListing(backend, prefix, tuple(feature(FeatureKind.TOOL, name) for name in names))


def resources(backend: str, *uris: str, kind: FeatureKind = FeatureKind.RESOURCE) -> FeatureListing:
    return FeatureListing(backend, backend, tuple(feature(kind, uri) for uri in uris))


def names(catalog: Catalog, kind: FeatureKind = FeatureKind.TOOL) -> list[str]:
    return [entry.public_name for entry in catalog.entries(kind)]


@pytest.mark.holds("M7")
def test_features_are_in_config_order_with_their_prefix() -> None:
    catalog = merge_listings([tools("web", "get", "all"), tools("fs", "read")])
    assert names(catalog) == ["web__get", "web__all", "fs__read"]
    found = catalog.find(FeatureKind.TOOL, "fs__read")
    assert found is not None
    assert (found.backend, found.native_name) == ("fs", "read")
    assert catalog.find(FeatureKind.TOOL, "read") is None
    assert catalog.find(FeatureKind.PROMPT, "fs__read") is None


def list_of(catalog: Catalog, kind: FeatureKind, revision: Revision = V2026_07_28) -> Raw:
    return write_list_result(kind, catalog.entries(kind), revision)


def test_a_list_has_every_definition_under_its_public_name() -> None:
    catalog = merge_listings([tools("fs", "read"), resources("fs", "file:///a")])
    assert from_raw(list_of(catalog, FeatureKind.TOOL), object) == {
        "tools": [{"name": "fs__read", "description": "read of old"}]
    }
    assert bytes(list_of(catalog, FeatureKind.PROMPT)) == b'{"prompts":[]}'


def test_a_list_is_encoded_for_each_revision() -> None:
    definition = to_raw({"name": "a", "outputSchema": {"type": "array"}})
    catalog = merge_listings(
        [FeatureListing("x", "", (Feature(FeatureKind.TOOL, "a", definition),))]
    )
    newest = list_of(catalog, FeatureKind.TOOL)
    assert from_raw(newest) == {"tools": [{"name": "a", "outputSchema": {"type": "array"}}]}
    older = list_of(catalog, FeatureKind.TOOL, V2025_11_25)
    assert from_raw(older) == {"tools": [{"name": "a"}]}


@pytest.mark.holds("M7")
def test_of_two_equal_names_the_first_keeps_it_and_both_can_be_called() -> None:
    catalog = merge_listings([tools("a", "get", prefix=""), tools("b", "get", "put", prefix="")])
    assert names(catalog) == ["get", "b__get", "put"]
    (collision,) = catalog.collisions
    assert (collision.wanted, collision.kept_by) == ("get", "a")
    assert (collision.renamed.public_name, collision.renamed.native_name) == ("b__get", "get")


def test_the_alternative_name_may_be_taken_too() -> None:
    catalog = merge_listings(
        [tools("x", "get", prefix=""), tools("y", "get", prefix="b"), tools("b", "get", prefix="")]
    )
    assert names(catalog)[:2] == ["get", "b__get"]
    last = catalog.find(FeatureKind.TOOL, names(catalog)[2])
    assert last is not None
    assert (last.backend, last.native_name) == ("b", "get")


def test_a_backend_that_lists_something_twice_has_it_once() -> None:
    catalog = merge_listings([tools("a", "get", "get")])
    assert names(catalog) == ["a__get"]
    assert catalog.collisions == ()


def test_a_resource_keeps_its_uri_and_equal_ones_are_prefixed() -> None:
    catalog = merge_listings(
        [resources("a", "file:///x"), resources("b", "file:///x", "file:///y")]
    )
    assert names(catalog, FeatureKind.RESOURCE) == [
        "file:///x",
        "trunkline:b:file:///x",
        "file:///y",
    ]
    marked = catalog.find_resource("trunkline:b:file:///x")
    assert marked is not None
    assert (marked.backend, marked.native_name) == ("b", "file:///x")


def test_an_unlisted_resource_belongs_to_the_most_specific_template() -> None:
    catalog = merge_listings(
        [
            resources("a", "file:///{path}", kind=FeatureKind.TEMPLATE),
            resources("b", "file:///docs/{path}", "file:///{path}", kind=FeatureKind.TEMPLATE),
        ]
    )
    cases = {
        "file:///x": ("a", "file:///x"),
        "file:///docs/x": ("b", "file:///docs/x"),
        "trunkline:b:file:///x": ("b", "file:///x"),
    }
    for uri, owner in cases.items():
        found = catalog.find_resource(uri)
        assert found is not None
        assert (found.backend, found.native_name) == owner
        assert found.public_name == uri
    assert catalog.find_resource("http://x") is None


def test_changes_are_reported_by_kind() -> None:
    one = merge_listings([tools("a", "x"), resources("a", "r:")])
    assert one == merge_listings([tools("a", "x"), resources("a", "r:")])
    assert one != "catalog"
    assert one.changed_kinds(merge_listings([tools("a", "y"), resources("a", "r:")])) == (
        FeatureKind.TOOL,
    )
    assert merge_listings([]).changed_kinds(one) == (FeatureKind.TOOL, FeatureKind.RESOURCE)
    assert Catalog().changed_kinds(merge_listings([])) == ()


@pytest.mark.holds("T109")
def test_the_catalogue_has_the_strictest_cache_hints() -> None:
    fresh = [CacheHints(7, public=True), CacheHints(5, public=True)]
    listings = [tools(str(n), "x")._replace(cache_hints=f) for n, f in enumerate(fresh)]
    assert merge_listings(listings).cache_hints == CacheHints(5, public=True)
    private = tools("p", "x")._replace(cache_hints=CacheHints(9, public=False))
    assert merge_listings([*listings, private]).cache_hints == CacheHints(5, public=False)
    assert merge_listings([*listings, tools("silent", "x")]).cache_hints == CacheHints()
    assert merge_listings([]).cache_hints == CacheHints()


@pytest.mark.parametrize(
    ("header", "header_params"),
    [("Region", (HeaderParam(b"mcp-param-region", ("r",), "string"),)), ("not a token", ())],
)
def test_an_entry_has_the_header_params_of_its_tool(header: str, header_params: Any) -> None:
    schema = {"properties": {"r": {"type": "string", "x-mcp-header": header}}}
    marked = to_raw({"name": "x", "uri": "u:", "inputSchema": schema})
    features = (
        Feature(FeatureKind.TOOL, "x", marked),
        Feature(FeatureKind.RESOURCE, "u:", marked),
    )
    catalog = merge_listings([FeatureListing("a", "a", features)])
    (tool,), (resource,) = catalog.entries(FeatureKind.TOOL), catalog.entries(FeatureKind.RESOURCE)
    assert (tool.header_params, resource.header_params) == (header_params, ())
    assert (tool.has_invalid_headers, resource.has_invalid_headers) == (not header_params, False)


def test_a_tool_with_invalid_headers_is_left_out_for_stateless_clients_only() -> None:
    schema = {"properties": {"r": {"type": "number", "x-mcp-header": "R"}}}
    invalid = to_raw({"name": "odd", "inputSchema": schema})
    plain = to_raw({"name": "plain", "inputSchema": {}})
    features = (
        Feature(FeatureKind.TOOL, "odd", invalid),
        Feature(FeatureKind.TOOL, "plain", plain),
    )
    entries = merge_listings([FeatureListing("a", "", features)]).entries(FeatureKind.TOOL)
    for revision in REVISIONS:
        listed: Any = from_raw(write_list_result(FeatureKind.TOOL, entries, revision))
        found = [each["name"] for each in listed["tools"]]
        assert found == (["plain"] if revision.is_stateless else ["odd", "plain"])


def test_a_listing_may_normalise_the_schemas_of_its_tools() -> None:
    odd = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}
    left = {"type": "object", "unevaluatedProperties": False}
    definitions: dict[str, Any] = {
        "odd": odd,
        "left": left,
        "plain": {"type": "object", "properties": {}},
    }
    features = tuple(
        Feature(FeatureKind.TOOL, name, to_raw({"name": name, "inputSchema": schema}))
        for name, schema in definitions.items()
    )
    features += (Feature(FeatureKind.PROMPT, "p", to_raw({"name": "p", "inputSchema": odd})),)
    listing = FeatureListing("s", "s", features)
    before, after = (
        merge_listings([each]) for each in (listing, listing._replace(normalises_schemas=True))
    )
    assert before.changed_kinds(after) == (FeatureKind.TOOL,)
    assert all(each.input_schema is None for each in before.entries(FeatureKind.TOOL))
    found = after.entries(FeatureKind.TOOL)
    assert found[1:] == before.entries(FeatureKind.TOOL)[1:]
    shown: Any = from_raw(found[0].definition)
    assert shown["name"] == "s__odd"
    assert shown["inputSchema"]["properties"]["a"] == {
        "anyOf": [{"type": "string"}, {"type": "null"}]
    }
    assert from_raw(found[0].input_schema or Raw(b"null")) == odd


KEYS = st.sampled_from(["get", "get ", "b__get", "__get", "x" * 70, "é", "a__b__get", "file:///a"])
LISTINGS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "a__b"]), st.sampled_from(["", "a", "b"]), st.lists(KEYS)),
    max_size=4,
    unique_by=lambda listing: listing[0],
)


@pytest.mark.holds("M7")
@pytest.mark.parametrize("kind", list(FeatureKind))
@given(LISTINGS)
def test_every_feature_can_be_called_and_leads_to_its_backend(
    kind: FeatureKind, listings: list[tuple[str, str, list[str]]]
) -> None:
    made = [
        FeatureListing(b, p, tuple(feature(kind, key) for key in keys)) for b, p, keys in listings
    ]
    catalog = merge_listings(made)
    owners = {(entry.backend, entry.native_name) for entry in catalog.entries(kind)}
    assert owners == {(backend, key) for backend, _, keys in listings for key in keys}
    listed: list[dict[str, Any]] = json.loads(bytes(list_of(catalog, kind)))[kind.value]
    assert [item[kind.key] for item in listed] == names(catalog, kind)
    assert (
        names(merge_listings(made[:-1]), kind)
        == names(catalog, kind)[: len(merge_listings(made[:-1]).entries(kind))]
    )
