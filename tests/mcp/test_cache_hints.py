"""Cache hints: never more permissive than the strictest source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, read_members, to_raw
from trunkline.mcp.cache_hints import MAX_TTL_MS, CacheHints, merge_cache_hints, read_cache_hints

PARTS = st.lists(st.builds(CacheHints, st.integers(0, MAX_TTL_MS), st.booleans()), max_size=5)


def test_a_result_without_hints_may_not_be_cached() -> None:
    assert read_cache_hints({}) == CacheHints() == CacheHints(0, public=False)


@pytest.mark.parametrize(
    "fresh", [CacheHints(0, public=True), CacheHints(MAX_TTL_MS, public=False)]
)
def test_what_is_written_can_be_read_back(fresh: CacheHints) -> None:
    assert read_cache_hints(read_members(to_raw(fresh.to_members()))) == fresh


@pytest.mark.parametrize("ttl", [b"-1", b"1.5", b"true", b"null", b'"9"', b"1e999", b"1" * 30])
def test_a_malformed_ttl_is_zero(ttl: bytes) -> None:
    found = {"ttlMs": Raw(ttl), "cacheScope": Raw(b'"public"')}
    assert read_cache_hints(found) == CacheHints(0, public=True)


@pytest.mark.parametrize("scope", [b'"shared"', b'"Public"', b"true", b"null", b"1e999", b"[]"])
def test_the_default_scope_is_private(scope: bytes) -> None:
    assert read_cache_hints({"ttlMs": Raw(b"7"), "cacheScope": Raw(scope)}) == CacheHints(7)


def test_hints_merged_from_nothing_forbid_caching() -> None:
    assert merge_cache_hints([]) == CacheHints()


@given(PARTS)
def test_merged_hints_are_as_strict_as_the_strictest_part(parts: list[CacheHints]) -> None:
    whole = merge_cache_hints(iter(parts))
    for part in parts:
        assert whole.ttl_ms <= part.ttl_ms
        assert part.public or not whole.public
    if parts:
        assert whole.ttl_ms in {part.ttl_ms for part in parts}
        assert whole.public == all(part.public for part in parts)
