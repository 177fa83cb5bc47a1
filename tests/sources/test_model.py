"""The types of a registry, and the JSON Schema derived from them."""

import json
from pathlib import Path
from typing import Any, cast

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline.sources
from tests.json_values import JSON
from tests.sources.registries import TREE, tree
from trunkline.documents.errors import ConfigErrors
from trunkline.sources.model import (
    SCHEMA_FILE,
    Category,
    SourceRegistry,
    registry_schema,
    schema_text,
    shipped_schema,
)
from trunkline.sources.registry_file import load_embedded, parse_registry


@pytest.mark.holds("O1.7")
def test_a_registry_is_read_into_frozen_values() -> None:
    registry = msgspec.convert(TREE, SourceRegistry)
    assert registry.curator.name == "Ada"
    assert [source.rank for source in registry.categories["rust-learning"].sources] == [1, 2, 3]
    with pytest.raises(AttributeError):
        registry.version = "2.0.0"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("kind", [SourceRegistry, Category])
def test_every_key_has_a_description(kind: type) -> None:
    _, found = msgspec.json.schema_components([kind])
    for definition in found.values():
        for name, entry in definition["properties"].items():
            assert entry["description"].endswith("."), name


VALIDATOR: Any = jsonschema.Draft202012Validator(registry_schema())


def test_the_shipped_schema_matches_the_types(update: bool) -> None:
    shipped = Path(trunkline.sources.__file__).with_name(SCHEMA_FILE)
    if update:
        shipped.write_text(schema_text(), encoding="utf-8")
    assert shipped.read_text(encoding="utf-8") == schema_text(), "run `make update`"
    assert shipped_schema() == registry_schema()


def test_the_schema_is_a_schema_without_null() -> None:
    jsonschema.Draft202012Validator.check_schema(registry_schema())
    assert "null" not in schema_text()


def test_valid_registries_pass_the_schema() -> None:
    for good in (TREE, load_embedded().tree, tree() | {"$schema": "./sources.schema.json"}):
        VALIDATOR.validate(good)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside: Any = ()
    if isinstance(value, dict):
        inside = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        inside = enumerate(cast("list[Any]", value))
    return [path, *(found for key, item in inside for found in paths(item, (*path, key)))]


ONE = tree(categories={"rust-learning": TREE["categories"]["rust-learning"]})
PLACES = st.sampled_from([path for path in paths(ONE) if path])


@given(PLACES, JSON | st.sampled_from(["1.0.0", "https://a.example", 2, ""]))
def test_the_loader_rejects_what_the_schema_rejects(place: tuple[Any, ...], value: Any) -> None:
    changed = json.loads(json.dumps(ONE))
    inside = changed
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    if not VALIDATOR.is_valid(changed):
        with pytest.raises(ConfigErrors):
            parse_registry(json.dumps(changed), "a.json")
