"""Offsets, lines and columns, and the nearest table where a key has no place of its own."""

from hypothesis import given
from hypothesis import strategies as st

from trunkline.documents.lines import MAX_DEPTH, Index, Lines, Position, Twice

TEXT = st.text(alphabet="ab\n\r é", max_size=30)


def lines_of(text: str, **places: int) -> Lines:
    index = Index()
    for key, offset in places.items():
        index.give(tuple(key.split("_")), offset)
    return Lines(text, lambda _: index)


@given(TEXT, st.integers(0, 30))
def test_a_position_leads_back_to_its_offset(text: str, offset: int) -> None:
    offset = min(offset, len(text))
    lines = lines_of(text)
    line, column = lines.position(offset)
    assert line == text[:offset].count("\n") + 1
    assert lines.offset(line, column) == offset


def test_what_is_past_the_end_is_at_the_end() -> None:
    lines = lines_of("ab\ncd")
    assert lines.offset(2, 99) == 5
    assert lines.offset(3, 1) == 5


def test_a_key_without_a_place_is_at_the_nearest_table_around_it() -> None:
    lines = lines_of("\n\na\n  b", a=2, a_b=6)
    assert lines.find(("a", "b")) == Position(4, 3)
    assert lines.find(("a", "c", 1, "d")) == Position(3, 1)
    assert lines.find(("x",)) == Position(1, 1)
    assert lines.find(()) == Position(1, 1)


def test_nothing_is_scanned_before_somebody_asks() -> None:
    asked: list[str] = []

    def scan(text: str) -> Index:
        asked.append(text)
        return Index()

    lines = Lines("abc", scan)
    assert lines.position(1) == Position(1, 2)
    assert asked == []
    lines.find(("a",))
    lines.find(("b",))
    assert asked == ["abc"]


def test_a_key_given_again_is_remembered_with_both_places() -> None:
    index = Index()
    index.imply(("a",), 1)
    index.give(("a",), 3)
    index.give(("a",), 7)
    assert index.twice == [Twice(("a",), 7, 3)]
    assert index.places == {("a",): 3}


def test_what_is_deeper_than_anything_means_is_not_remembered() -> None:
    index = Index()
    deep = ("a",) * (MAX_DEPTH + 1)
    index.imply(deep, 0)
    index.give(deep, 0)
    index.give(deep, 1)
    assert (index.places, index.twice) == ({}, [])
