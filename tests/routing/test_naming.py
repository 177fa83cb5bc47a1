"""Names that every model takes, and that never change under anyone's feet."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.naming import MAX_NAME, public_name

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
def test_a_plain_name_is_offered_behind_its_prefix(prefix: str, name: str, expected: str) -> None:
    assert public_name(prefix, name) == expected


@pytest.mark.parametrize("name", ["Lies, Dateien!", "tools.read", "é", "", " ", "y" * 62, "a/b"])
def test_any_other_name_ends_in_a_hash_of_itself(name: str) -> None:
    assert re.fullmatch(r"x__[A-Za-z0-9_-]*_[0-9a-f]{8}", public_name("x", name)) or name == ""
    assert re.fullmatch(r"[A-Za-z0-9_-]*_[0-9a-f]{8}", public_name("", name)) or len(name) == 62


@given(PREFIXES, NAMES)
def test_a_public_name_is_short_plain_and_always_the_same(prefix: str, name: str) -> None:
    offered = public_name(prefix, name)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", offered)
    assert len(offered) <= MAX_NAME
    assert offered == public_name(prefix, name)


@given(PREFIXES, NAMES, NAMES)
def test_two_names_of_one_backend_never_become_one(prefix: str, one: str, other: str) -> None:
    assert (public_name(prefix, one) == public_name(prefix, other)) == (one == other)
