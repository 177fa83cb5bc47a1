"""Text formats that tables share: validation and the JSON Schema agree."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
import msgspec.inspect as kinds
import pytest

from trunkline.config.model import Config, ConfigTable
from trunkline.config.policy_tables import ExpectationTable
from trunkline.documents.errors import KeyPath
from trunkline.documents.formats import text_format, text_format_in_union
from trunkline.documents.validation import validate

Word = Annotated[str, text_format("^[a-z]+$", "a word", 5)]
WordInUnion = Annotated[str, text_format_in_union("^[a-z]+$", "a word", 5)]


@pytest.mark.parametrize("text", ["", "A", "abcdef", "a\n"])
@pytest.mark.parametrize("kind", [Word, WordInUnion, WordInUnion | tuple[Word, ...]])
def test_text_of_another_format_is_reported_with_the_expected_one(kind: object, text: str) -> None:
    problems: list[str] = []

    def report(path: KeyPath, why: str, fix: str) -> None:
        problems.append(f"{why}; {fix}")

    validate("abc", kinds.type_info(kind), (), report)
    assert problems == []
    validate(text, kinds.type_info(kind), (), report)
    assert problems == ["expected a word; choose another"]


def test_the_schema_of_a_format_is_the_same_in_a_union() -> None:
    plain, in_union = msgspec.json.schema(Word), msgspec.json.schema(WordInUnion)
    assert plain == in_union == {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}


def unions(kind: object) -> Iterator[kinds.UnionType]:
    """Yield every union inside a type, at any depth."""
    match kind:
        case kinds.UnionType():
            yield kind
            inner_types: list[object] = list(kind.types)
        case kinds.StructType():
            inner_types = [field.type for field in kind.fields]
        case kinds.DictType():
            inner_types = [kind.key_type, kind.value_type]
        case kinds.VarTupleType() | kinds.ListType():
            inner_types = [kind.item_type]
        case kinds.Metadata():
            inner_types = [kind.type]
        case _:
            inner_types = []
    for inner in inner_types:
        yield from unions(inner)


def is_patterned(kind: object) -> bool:
    while isinstance(kind, kinds.Metadata):
        kind = kind.type
    return isinstance(kind, kinds.StrType) and kind.pattern is not None


def is_list(kind: object) -> bool:
    while isinstance(kind, kinds.Metadata):
        kind = kind.type
    return isinstance(kind, kinds.VarTupleType)


@pytest.mark.parametrize("root", [Config, ConfigTable, ExpectationTable])
def test_no_union_has_a_list_and_a_pattern_that_msgspec_would_free_twice(root: type) -> None:
    all_unions = list(unions(kinds.type_info(root)))
    assert all_unions
    assert [
        u for u in all_unions if any(map(is_list, u.types)) and any(map(is_patterned, u.types))
    ] == []
