"""The JSON Schema of a registry: fresh, and of one mind with the loader."""

import json
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline.sources
from tests.jsonrpc.test_raw import JSON
from tests.sources.registries import TREE, tree
from trunkline.documents.errors import ConfigErrors
from trunkline.sources.load import embedded, parse
from trunkline.sources.schema import FILE, registry_schema, schema_text, shipped_schema

VALIDATOR: Any = jsonschema.Draft202012Validator(registry_schema())


def test_the_shipped_schema_is_the_one_of_the_types(update: bool) -> None:
    shipped = Path(trunkline.sources.__file__).with_name(FILE)
    if update:
        shipped.write_text(schema_text(), encoding="utf-8")
    assert shipped.read_text(encoding="utf-8") == schema_text(), "run `make update`"
    assert shipped_schema() == registry_schema()


def test_the_schema_is_a_schema_without_null() -> None:
    jsonschema.Draft202012Validator.check_schema(registry_schema())
    assert "null" not in schema_text()


def test_good_registries_are_good_by_the_schema() -> None:
    for good in (TREE, embedded().tree, tree() | {"$schema": "./sources.schema.json"}):
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
def test_what_the_schema_refuses_the_loader_refuses(place: tuple[Any, ...], value: Any) -> None:
    changed = json.loads(json.dumps(ONE))
    inside = changed
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    if not VALIDATOR.is_valid(changed):
        with pytest.raises(ConfigErrors):
            parse(json.dumps(changed), "a.json")
