"""Patterns: names with `*` and `?`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.pattern import fits, fits_any


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
def test_a_pattern_means_these(pattern: str, name: str) -> None:
    assert fits(pattern, name)


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
def test_a_pattern_does_not_mean_these(pattern: str, name: str) -> None:
    assert not fits(pattern, name)


def test_one_of_several_patterns_is_enough() -> None:
    assert fits_any(["a", "b*"], "bc")
    assert not fits_any(["a", "b*"], "c")
    assert not fits_any([], "c")


@given(st.text(alphabet="ab*?", max_size=8), st.text(alphabet="ab", max_size=8))
def test_patterns_mean_what_regular_expressions_would(pattern: str, name: str) -> None:
    expression = pattern.replace("*", ".*").replace("?", ".")
    assert fits(pattern, name) == (re.fullmatch(expression, name) is not None)
