"""What is known of callers: each for itself, and not of too many, or of those who say too much."""

from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.principal import LOCAL
from trunkline.routing.known_callers import LONGEST, MOST, KnownCallers


def somebody(client: bytes = b"{}") -> Caller:
    return Caller(LOCAL, "2025-11-25", {}, Raw(client))


def test_two_who_say_the_same_of_themselves_are_told_apart() -> None:
    known, one, other = KnownCallers[str](), somebody(), somebody()
    assert known.keep(one, "one") == ("one", one)
    assert known.get(id(one)) == ("one", one)
    assert known.get(id(other)) is None


def test_whoever_is_known_is_kept_so_that_nobody_else_has_its_address() -> None:
    known = KnownCallers[int]()
    for number in range(MOST):
        known.keep(somebody(), number)
    assert [found for found, _ in known.values()] == [*range(MOST)]


def test_only_so_many_are_known() -> None:
    known = KnownCallers[int]()
    for number in range(3 * MOST):
        known.keep(somebody(), number)
        assert len(known) <= MOST


def test_who_says_much_of_itself_is_not_kept_in_mind() -> None:
    known, long = KnownCallers[int](), somebody(b'{"name":"%s"}' % (b"x" * LONGEST))
    assert known.keep(long, 7) == (7, long)
    assert not known
