"""Forms that tables share: what is checked, and what the schema says, are the same."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
import msgspec.inspect as kinds
import pytest

from trunkline.config.expectations import ExpectTable
from trunkline.config.forms import form, form_beside_list
from trunkline.config.model import Config, ConfigTable
from trunkline.documents.fit import fit
from trunkline.documents.lines import KeyPath

Word = Annotated[str, form("^[a-z]+$", "a word", 5)]
OneWord = Annotated[str, form_beside_list("^[a-z]+$", "a word", 5)]


@pytest.mark.parametrize("text", ["", "A", "abcdef", "a\n"])
@pytest.mark.parametrize("kind", [Word, OneWord, OneWord | tuple[Word, ...]])
def test_a_text_of_another_form_is_told_what_was_expected(kind: object, text: str) -> None:
    found: list[str] = []

    def complain(path: KeyPath, why: str, fix: str) -> None:
        found.append(f"{why}; {fix}")

    fit("abc", kinds.type_info(kind), (), complain)
    assert found == []
    fit(text, kinds.type_info(kind), (), complain)
    assert found == ["expected a word; choose another"]


def test_the_schema_is_the_same_beside_a_list() -> None:
    one, other = msgspec.json.schema(Word), msgspec.json.schema(OneWord)
    assert one == other == {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}


def unions(kind: object) -> Iterator[kinds.UnionType]:
    """Yield every union that is somewhere inside of a type."""
    match kind:
        case kinds.UnionType():
            yield kind
            inside: list[object] = list(kind.types)
        case kinds.StructType():
            inside = [field.type for field in kind.fields]
        case kinds.DictType():
            inside = [kind.key_type, kind.value_type]
        case kinds.VarTupleType() | kinds.ListType():
            inside = [kind.item_type]
        case kinds.Metadata():
            inside = [kind.type]
        case _:
            inside = []
    for each in inside:
        yield from unions(each)


def is_patterned(kind: object) -> bool:
    while isinstance(kind, kinds.Metadata):
        kind = kind.type
    return isinstance(kind, kinds.StrType) and kind.pattern is not None


def is_list(kind: object) -> bool:
    while isinstance(kind, kinds.Metadata):
        kind = kind.type
    return isinstance(kind, kinds.VarTupleType)


@pytest.mark.parametrize("whole", [Config, ConfigTable, ExpectTable])
def test_no_pattern_stands_beside_a_list_where_msgspec_would_free_it_twice(whole: type) -> None:
    found = list(unions(kinds.type_info(whole)))
    assert found
    assert [
        u for u in found if any(map(is_list, u.types)) and any(map(is_patterned, u.types))
    ] == []
