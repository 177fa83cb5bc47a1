"""What a registry says, as values."""

import msgspec
import pytest

from tests.sources.registries import TREE
from trunkline.sources.model import Category, SourceRegistry


@pytest.mark.holds("O1.7")
def test_a_registry_is_read_into_frozen_values() -> None:
    registry = msgspec.convert(TREE, SourceRegistry)
    assert registry.curator.name == "Ada"
    assert [source.rank for source in registry.categories["rust-learning"].sources] == [1, 2, 3]
    with pytest.raises(AttributeError):
        registry.version = "2.0.0"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("kind", [SourceRegistry, Category])
def test_every_key_says_what_it_is(kind: type) -> None:
    _, found = msgspec.json.schema_components([kind])
    for definition in found.values():
        for name, entry in definition["properties"].items():
            assert entry["description"].endswith("."), name
