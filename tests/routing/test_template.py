"""URI templates, matched without regular expressions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.template import literals, matches, weight


@pytest.mark.parametrize(
    ("template", "uri", "expected"),
    [
        ("file:///a", "file:///a", True),
        ("file:///a", "file:///b", False),
        ("file:///{path}", "file:///a/b", True),
        ("file:///{path}", "file:///", True),
        ("file:///{path}", "http://x", False),
        ("db://{table}/row/{id}", "db://t/row/7", True),
        ("db://{table}/row/{id}", "db://t/col/7", False),
        ("db://{table}/row/{id}.json", "db://t/row/7.json", True),
        ("db://{table}/row/{id}.json", "db://t/row/7.xml", False),
        ("{a}", "anything", True),
        ("x{a}y{b}z", "xyz", True),
        ("x{a}y{b}z", "xz", False),
        ("ab{x}ba", "aba", False),
        ("a{unclosed", "a{unclosed", True),
        ("a{unclosed", "ab", False),
        ("", "", True),
    ],
)
def test_a_uri_matches_where_the_literals_do(template: str, uri: str, expected: bool) -> None:
    assert matches(template, uri) is expected


@given(st.lists(st.text("abc/:", max_size=4), min_size=1), st.lists(st.text("abc/:{", max_size=4)))
def test_what_a_template_expands_to_matches_it(parts: list[str], values: list[str]) -> None:
    filled = values[: len(parts) - 1] + [""] * (len(parts) - 1 - len(values))
    uri = parts[0] + "".join(v + p for v, p in zip(filled, parts[1:], strict=True))
    assert matches("{x}".join(parts), uri)


def test_no_template_makes_matching_slow() -> None:
    assert not matches("{a}a" * 20_000 + "{b}x", "a" * 40_000)


def test_the_heavier_template_says_more() -> None:
    assert weight("file:///{p}") < weight("file:///docs/{p}")
    assert literals("a{x}b{y}") == ["a", "b", ""]
