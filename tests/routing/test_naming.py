"""Public names, patterns and URI templates."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.naming import (
    MAX_PUBLIC_NAME_LENGTH,
    find_ambiguity,
    matches_any_pattern,
    matches_pattern,
    matches_template,
    public_name,
    template_literals,
    template_specificity,
)

PREFIXES = st.sampled_from(["", "fs", "my-server", "Ümlaut"])
NAMES = st.text(max_size=100)


@pytest.mark.parametrize(
    ("prefix", "name", "expected"),
    [
        ("fs", "read_file", "fs__read_file"),
        ("", "read_file", "read_file"),
        ("a-b", "C_d-9", "a-b__C_d-9"),
        ("x", "y" * 61, "x__" + "y" * 61),
    ],
)
def test_a_plain_name_gets_its_prefix(prefix: str, name: str, expected: str) -> None:
    assert public_name(prefix, name) == expected


@pytest.mark.parametrize("name", ["Lies, Dateien!", "tools.read", "é", "", " ", "y" * 62, "a/b"])
def test_any_other_name_ends_in_a_hash_of_itself(name: str) -> None:
    assert re.fullmatch(r"x__[A-Za-z0-9_-]*_[0-9a-f]{8}", public_name("x", name)) or name == ""
    assert re.fullmatch(r"[A-Za-z0-9_-]*_[0-9a-f]{8}", public_name("", name)) or len(name) == 62


@given(PREFIXES, NAMES)
def test_a_public_name_is_short_plain_and_always_the_same(prefix: str, name: str) -> None:
    offered = public_name(prefix, name)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", offered)
    assert len(offered) <= MAX_PUBLIC_NAME_LENGTH
    assert offered == public_name(prefix, name)


@given(PREFIXES, NAMES, NAMES)
def test_two_names_of_one_backend_never_become_equal(prefix: str, one: str, other: str) -> None:
    assert (public_name(prefix, one) == public_name(prefix, other)) == (one == other)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("fs__read", "fs__read"),
        ("fs__*", "fs__read"),
        ("*", ""),
        ("*__delete_*", "fs__delete_file"),
        ("*a*b", "xaxbxb"),
        ("f?__r*", "fs__read"),
        ("*", "anything"),
        ("a**b", "ab"),
        ("*a?c*", "xaabcx"),
    ],
)
def test_a_pattern_matches_these(pattern: str, name: str) -> None:
    assert matches_pattern(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("fs__read", "fs__read_file"),
        ("fs__*", "gs__read"),
        ("FS__*", "fs__read"),
        ("ab*ba", "aba"),
        ("*x*y", "yx"),
        ("a?", "a"),
        ("?*", ""),
        ("*b", "ba"),
        ("*a?c*", "xabx"),
    ],
)
def test_a_pattern_does_not_match_these(pattern: str, name: str) -> None:
    assert not matches_pattern(pattern, name)


def test_one_of_several_patterns_is_enough() -> None:
    assert matches_any_pattern(["a", "b*"], "bc")
    assert not matches_any_pattern(["a", "b*"], "c")
    assert not matches_any_pattern([], "c")


@given(st.text(alphabet="ab*?", max_size=8), st.text(alphabet="ab", max_size=8))
def test_patterns_match_like_regular_expressions(pattern: str, name: str) -> None:
    expression = pattern.replace("*", ".*").replace("?", ".")
    assert matches_pattern(pattern, name) == (re.fullmatch(expression, name) is not None)


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
    assert matches_template(template, uri) is expected


@given(st.lists(st.text("abc/:", max_size=4), min_size=1), st.lists(st.text("abc/:{", max_size=4)))
def test_what_a_template_expands_to_matches_it(parts: list[str], values: list[str]) -> None:
    filled = values[: len(parts) - 1] + [""] * (len(parts) - 1 - len(values))
    uri = parts[0] + "".join(v + p for v, p in zip(filled, parts[1:], strict=True))
    assert matches_template("{x}".join(parts), uri)


def test_no_template_makes_matching_slow() -> None:
    assert not matches_template("{a}a" * 20_000 + "{b}x", "a" * 40_000)


def test_the_longer_template_is_more_specific() -> None:
    assert template_specificity("file:///{p}") < template_specificity("file:///docs/{p}")
    assert template_literals("a{x}b{y}") == ["a", "b", ""]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("file:///pub/../secret", "a segment . or .."),
        ("file:///pub/./secret", "a segment . or .."),
        ("file:///pub/%2e%2E/secret", "a segment . or .."),
        ("file:///pub/..%2fsecret", "a segment . or .."),
        ("file:///pub/%252e%252e/secret", "a segment . or .."),
        ("file:///pub\\..\\secret", "a segment . or .."),
        ("memo://../secret", "a segment . or .."),
        ("../secret", "a segment . or .."),
        ("file:///pub\\secret", "a backslash"),
        ("file:///pub%5Csecret", "a backslash"),
        ("file:///%73ecret", "escapes characters"),
        ("file:////secret", "two slashes"),
        ("file:///pub%2Fsecret", "two slashes"),
        ("trunkline:fs:file:////secret", "two slashes"),
        ("FILE:///secret", "scheme has capital"),
        ("https://Example.com/x", "host has capital"),
    ],
)
def test_a_uri_that_a_server_could_read_differently_is_ambiguous(uri: str, reason: str) -> None:
    assert reason in str(find_ambiguity(uri))


@pytest.mark.parametrize(
    "uri",
    [
        "file:///pub/a%20b/..c/d..e",
        "github://Owner/Repo%2Fsub",
        "web://https://example.com/x",
        "https://example.com/x?path=../y",
        "note:a.b",
        "plain-name",
        "",
    ],
)
def test_other_uris_are_not_ambiguous(uri: str) -> None:
    assert find_ambiguity(uri) is None
