"""Errors that say where, why and what to do, on one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.documents.errors import ConfigError, ConfigErrors, Report, key_text, meant
from trunkline.documents.lines import Index, Lines


def report_on(text: str) -> Report:
    index = Index()
    for offset, letter in enumerate(text):
        index.give((letter,), offset)
    return Report("trunkline.toml", Lines(text, lambda _: index))


def test_an_error_names_file_line_key_reason_and_remedy() -> None:
    error = ConfigError(
        "trunkline.toml", 12, "servers.fs.comand", "unknown key", 'did you mean "command"?'
    )
    assert str(error) == (
        'trunkline.toml:12: servers.fs.comand: unknown key; did you mean "command"?'
    )


def test_an_error_leaves_out_what_it_does_not_know() -> None:
    assert str(ConfigError("a.toml", None, "", "no such file")) == "a.toml: no such file"
    assert str(ConfigError("a.toml", 3, "", "not TOML", column=7)) == "a.toml:3:7: not TOML"


def test_all_errors_are_raised_at_once_from_the_top_of_the_file_down() -> None:
    report = report_on("a\nb")
    report.error(("b",), "wrong", "mend it")
    report.error(("a", "x"), "wrong", "")
    report.add(ConfigError("trunkline.toml", None, "", "odd"))
    with pytest.raises(ConfigErrors) as caught:
        report.check()
    assert str(caught.value).splitlines() == [
        "trunkline.toml: odd",
        "trunkline.toml:1: a.x: wrong",
        "trunkline.toml:2: b: wrong; mend it",
    ]
    assert [error.line for error in caught.value.errors] == [None, 1, 2]


def test_notes_are_no_errors() -> None:
    report = report_on("a\nb")
    report.note(("b",), "ignored", "")
    report.note(("a",), "ignored", "")
    report.check()
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
    assert key_text(path) == text


@given(st.lists(st.text() | st.integers(0)))
def test_no_key_breaks_the_line_or_the_terminal(path: list[str | int]) -> None:
    assert key_text(tuple(path)).isprintable()


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
def test_a_slip_is_understood(word: str, expected: str | None) -> None:
    assert meant(word, ["command", "start_timeout", "url"]) == expected
