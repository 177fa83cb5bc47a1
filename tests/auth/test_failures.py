"""Who is wrong again and again has to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.auth.issuer import Clock
from trunkline.auth import failures
from trunkline.auth.failures import Failures, network_of


def test_so_many_in_a_row_and_then_one_at_a_time() -> None:
    clock = Clock()
    counted = Failures(3, 60.0, clock)
    for _ in range(3):
        assert counted.wait("a") == 0
        counted.count("a")
    assert counted.wait("a") == 20
    assert counted.wait("b") == 0  # others do not wait
    clock.now += 20
    assert counted.wait("a") == 0
    counted.count("a")
    assert counted.wait("a") == 20
    clock.now += 1000
    assert [counted.wait("a"), counted.count("a"), counted.wait("a")] == [0, None, 0]


@given(st.lists(st.floats(0, 30)))
def test_nobody_is_wrong_more_often_than_they_may(pauses: list[float]) -> None:
    clock, times = Clock(0.0), list[float]()
    counted = Failures(5, 60.0, clock)
    for pause in pauses:
        clock.now += pause
        if counted.wait("a") == 0:
            counted.count("a")
            times.append(clock.now)
    for begin in times:
        # A burst, and what was given back in the minute since.
        assert sum(begin <= each < begin + 60 for each in times) <= 5 + 5


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_ADDRESSES", 3)
    counted = Failures(1, 60.0, Clock())
    for address in ("a", "b", "a", "c", "d"):
        counted.count(address)
    assert len(counted) == 3
    assert counted.wait("b") == 0  # the one who was wrong longest ago
    assert min(counted.wait(address) for address in "acd") > 0


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("", ""),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_one_customer_is_one_address(address: str, network: str) -> None:
    assert network_of(address) == network
