"""For how long a result may be kept: never longer, and by nobody more, than all parts allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, members, to_raw
from trunkline.mcp.cacheable import MAX_TTL, Freshness, merge_freshness, read_freshness

PARTS = st.lists(st.builds(Freshness, st.integers(0, MAX_TTL), st.booleans()), max_size=5)


def test_what_says_nothing_may_not_be_kept() -> None:
    assert read_freshness({}) == Freshness() == Freshness(0, public=False)


@pytest.mark.parametrize("fresh", [Freshness(0, public=True), Freshness(MAX_TTL, public=False)])
def test_what_is_written_is_what_is_read(fresh: Freshness) -> None:
    assert read_freshness(members(to_raw(fresh.members()))) == fresh


@pytest.mark.parametrize("ttl", [b"-1", b"1.5", b"true", b"null", b'"9"', b"1e999", b"1" * 30])
def test_a_time_that_makes_no_sense_is_none(ttl: bytes) -> None:
    found = {"ttlMs": Raw(ttl), "cacheScope": Raw(b'"public"')}
    assert read_freshness(found) == Freshness(0, public=True)


@pytest.mark.parametrize("scope", [b'"shared"', b'"Public"', b"true", b"null", b"1e999", b"[]"])
def test_what_is_not_said_to_be_public_is_private(scope: bytes) -> None:
    assert read_freshness({"ttlMs": Raw(b"7"), "cacheScope": Raw(scope)}) == Freshness(7)


def test_a_whole_of_nothing_may_not_be_kept() -> None:
    assert merge_freshness([]) == Freshness()


@given(PARTS)
def test_a_whole_is_as_careful_as_the_most_careful_of_its_parts(parts: list[Freshness]) -> None:
    whole = merge_freshness(iter(parts))
    for part in parts:
        assert whole.ttl <= part.ttl
        assert part.public or not whole.public
    if parts:
        assert whole.ttl in {part.ttl for part in parts}
        assert whole.public == all(part.public for part in parts)
