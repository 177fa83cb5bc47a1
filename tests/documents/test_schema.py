"""JSON Schemas without null."""

from typing import Annotated, Literal

import msgspec

from trunkline.documents.schema import without_null


class Table(msgspec.Struct):
    name: Annotated[str | None, msgspec.Meta(description="A name.")] = None
    kind: Literal["a", "b"] | None = None
    count: int = 0


def test_what_may_be_absent_is_never_null() -> None:
    _, found = msgspec.json.schema_components([Table])
    schema = without_null(found["Table"])
    assert schema["properties"] == {
        "name": {"description": "A name.", "type": "string"},
        "kind": {"enum": ["a", "b"]},
        "count": {"type": "integer", "default": 0},
    }
