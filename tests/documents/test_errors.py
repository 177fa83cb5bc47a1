"""Errors with file, line and fix; positions of keys in a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.documents.errors import (
    MAX_KEY_DEPTH,
    ConfigError,
    ConfigErrors,
    ErrorCollector,
    KeyIndex,
    KeyLocator,
    RepeatedKey,
    TextPosition,
    closest_match,
    format_key_path,
)


def collector_for(text: str) -> ErrorCollector:
    index = KeyIndex()
    for offset, letter in enumerate(text):
        index.add((letter,), offset)
    return ErrorCollector("trunkline.toml", KeyLocator(text, lambda _: index))


def test_an_error_names_file_line_key_reason_and_fix() -> None:
    error = ConfigError(
        "trunkline.toml", 12, "servers.fs.comand", "unknown key", 'did you mean "command"?'
    )
    assert str(error) == (
        'trunkline.toml:12: servers.fs.comand: unknown key; did you mean "command"?'
    )


def test_an_error_leaves_out_missing_parts() -> None:
    assert str(ConfigError("a.toml", None, "", "no such file")) == "a.toml: no such file"
    assert str(ConfigError("a.toml", 3, "", "not TOML", column=7)) == "a.toml:3:7: not TOML"


def test_all_errors_are_raised_at_once_from_the_top_of_the_file_down() -> None:
    report = collector_for("a\nb")
    report.add_error(("b",), "wrong", "mend it")
    report.add_error(("a", "x"), "wrong", "")
    report.add(ConfigError("trunkline.toml", None, "", "odd"))
    with pytest.raises(ConfigErrors) as caught:
        report.raise_if_any()
    assert str(caught.value).splitlines() == [
        "trunkline.toml: odd",
        "trunkline.toml:1: a.x: wrong",
        "trunkline.toml:2: b: wrong; mend it",
    ]
    assert [error.line for error in caught.value.errors] == [None, 1, 2]


def test_notes_do_not_raise() -> None:
    report = collector_for("a\nb")
    report.add_note(("b",), "ignored", "")
    report.add_note(("a",), "ignored", "")
    report.raise_if_any()
    assert report.notes() == ("trunkline.toml:1: a: ignored", "trunkline.toml:2: b: ignored")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("servers", "fs", "args", 2), "servers.fs.args[2]"),
        (("mcpServers", "My Server"), 'mcpServers."My Server"'),
        (("a.b", "größe"), '"a.b"."größe"'),
        (("\x1b[31m", ""), '"\\u001b[31m".""'),
        (("x" * 100,), '"' + "x" * 40 + '…"'),
    ],
)
def test_a_key_is_written_as_toml_would_write_it(path: tuple[str | int, ...], text: str) -> None:
    assert format_key_path(path) == text


@given(st.lists(st.text() | st.integers(0)))
def test_no_key_breaks_the_line_or_the_terminal(path: list[str | int]) -> None:
    assert format_key_path(tuple(path)).isprintable()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("comand", "command"),
        ("Command", "command"),
        ("start-timeout", "start_timeout"),
        ("startTimeout", "start_timeout"),
        ("banana", None),
        ("command" * 10, None),
        ("", None),
    ],
)
def test_the_closest_match_of_a_misspelling_is_found(word: str, expected: str | None) -> None:
    assert closest_match(word, ["command", "start_timeout", "url"]) == expected


TEXT = st.text(alphabet="ab\n\r é", max_size=30)


def locator_of(text: str, **offsets: int) -> KeyLocator:
    index = KeyIndex()
    for key, offset in offsets.items():
        index.add(tuple(key.split("_")), offset)
    return KeyLocator(text, lambda _: index)


@given(TEXT, st.integers(0, 30))
def test_a_position_leads_back_to_its_offset(text: str, offset: int) -> None:
    offset = min(offset, len(text))
    locator = locator_of(text)
    line, column = locator.position_at(offset)
    assert line == text[:offset].count("\n") + 1
    assert locator.offset_at(line, column) == offset


def test_an_offset_past_the_end_is_the_end() -> None:
    locator = locator_of("ab\ncd")
    assert locator.offset_at(2, 99) == 5
    assert locator.offset_at(3, 1) == 5


def test_a_key_without_a_position_has_that_of_the_nearest_table() -> None:
    locator = locator_of("\n\na\n  b", a=2, a_b=6)
    assert locator.find_key(("a", "b")) == TextPosition(4, 3)
    assert locator.find_key(("a", "c", 1, "d")) == TextPosition(3, 1)
    assert locator.find_key(("x",)) == TextPosition(1, 1)
    assert locator.find_key(()) == TextPosition(1, 1)


def test_the_text_is_scanned_on_demand() -> None:
    scanned: list[str] = []

    def scan(text: str) -> KeyIndex:
        scanned.append(text)
        return KeyIndex()

    locator = KeyLocator("abc", scan)
    assert locator.position_at(1) == TextPosition(1, 2)
    assert scanned == []
    locator.find_key(("a",))
    locator.find_key(("b",))
    assert scanned == ["abc"]


def test_a_repeated_key_has_both_offsets() -> None:
    index = KeyIndex()
    index.add_implied(("a",), 1)
    index.add(("a",), 3)
    index.add(("a",), 7)
    assert index.repeated == [RepeatedKey(("a",), 7, 3)]
    assert index.offsets == {("a",): 3}


def test_keys_beyond_the_maximum_depth_are_not_indexed() -> None:
    index = KeyIndex()
    deep = ("a",) * (MAX_KEY_DEPTH + 1)
    index.add_implied(deep, 0)
    index.add(deep, 0)
    index.add(deep, 1)
    assert (index.offsets, index.repeated) == ({}, [])
