"""The decision cache: what is kept in it, its limits, and how everything is dropped."""

from unittest.mock import Mock

from tests.gateway.test_call_context import ENTRY
from trunkline.gateway.decision_cache import (
    MAX_CACHED_CALLER_BYTES,
    MAX_CACHED_CALLERS,
    MAX_CACHED_LISTS,
    CallerCache,
    CallerRules,
    DecisionCache,
    Route,
)
from trunkline.jsonrpc import Raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.versions import V2025_11_25

TOOL = FeatureKind.TOOL
CALL, PROMPT = CLIENT_REQUESTS["tools/call"], CLIENT_REQUESTS["prompts/get"]


def caller_named(client: bytes = b"{}") -> Caller:
    return Caller(LOCAL_PRINCIPAL, V2025_11_25, {}, Raw(client))


def counting_cache() -> tuple[CallerCache[int], list[Caller]]:
    """Return a cache that numbers the callers, and the callers that were decided about."""
    decided: list[Caller] = []

    def decide(caller: Caller) -> int:
        decided.append(caller)
        return len(decided)

    return CallerCache(decide), decided


def test_each_caller_is_decided_about_once_even_if_it_equals_another() -> None:
    cache, decided = counting_cache()
    one, other = caller_named(), caller_named()
    assert [cache.get(caller) for caller in (one, other, one, other)] == [1, 2, 1, 2]
    assert len(decided) == 2


def test_a_cached_caller_is_kept_alive_so_that_its_identity_is_not_reused() -> None:
    cache, _ = counting_cache()
    for number in range(MAX_CACHED_CALLERS):
        assert cache.get(caller_named()) == number + 1
    assert len(cache) == MAX_CACHED_CALLERS


def test_the_number_of_cached_callers_is_limited() -> None:
    cache, _ = counting_cache()
    for _ in range(3 * MAX_CACHED_CALLERS):
        cache.get(caller_named())
        assert len(cache) <= MAX_CACHED_CALLERS


def test_a_caller_with_a_large_envelope_is_not_cached() -> None:
    cache, _ = counting_cache()
    long = caller_named(b'{"name":"%s"}' % (b"x" * MAX_CACHED_CALLER_BYTES))
    assert [cache.get(long), cache.get(long), len(cache)] == [1, 2, 0]


def test_a_route_allows_every_caller_unless_it_says_otherwise() -> None:
    assert Route(ENTRY, Mock()).caller_rules.get(caller_named()) == CallerRules(is_visible=True)


def test_invalidating_drops_everything_and_counts() -> None:
    cache, route = DecisionCache(), Route(ENTRY, Mock())
    cache.add_route(CALL, "a__b", route)
    cache.capabilities = {"tools": {}}
    first, second = Mock(), Mock()
    assert cache.policy_decision("g", ENTRY, lambda: first) is first
    assert cache.policy_decision("g", ENTRY, lambda: second) is first
    assert cache.encoded_list("g", TOOL, V2025_11_25, lambda: Raw(b"[1]")) == Raw(b"[1]")
    assert cache.encoded_list("g", TOOL, V2025_11_25, lambda: Raw(b"[2]")) == Raw(b"[1]")
    assert cache.route(CALL, "a__b") is route
    assert cache.route(PROMPT, "a__b") is None
    cache.invalidate()
    assert (cache.route(CALL, "a__b"), cache.capabilities) == (None, None)
    assert cache.policy_decision("g", ENTRY, lambda: second) is second
    assert cache.encoded_list("g", TOOL, V2025_11_25, lambda: Raw(b"[2]")) == Raw(b"[2]")
    assert cache.generation == 1


def test_a_list_is_encoded_once_per_group_kind_and_revision() -> None:
    cache, written = DecisionCache(), list[int]()

    def write() -> Raw:
        written.append(1)
        return Raw(b"[]")

    for _ in range(2):
        for group in ("a", "b"):
            for kind in (TOOL, FeatureKind.PROMPT):
                cache.encoded_list(group, kind, V2025_11_25, write)
    assert len(written) == 4


def test_the_oldest_list_makes_room_for_a_new_one() -> None:
    cache = DecisionCache()
    for number in range(MAX_CACHED_LISTS):
        cache.encoded_list(number, TOOL, V2025_11_25, lambda: Raw(b"[1]"))
    assert cache.encoded_list(0, TOOL, V2025_11_25, lambda: Raw(b"[2]")) == Raw(b"[1]")
    cache.encoded_list("new", TOOL, V2025_11_25, lambda: Raw(b"[1]"))
    assert cache.encoded_list(0, TOOL, V2025_11_25, lambda: Raw(b"[2]")) == Raw(b"[2]")
