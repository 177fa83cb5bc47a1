"""Sessions as values: created, found, removed and expired, each for its own principal."""

import re

import pytest

from trunkline.transports.sessions import IDLE, LIFE, Record, Sessions, TooManySessions


@pytest.mark.holds("S3.10", "C25")
def test_an_id_is_long_random_and_visible() -> None:
    sessions: Sessions[Record] = Sessions()
    ids = {sessions.create("p", Record(), 0.0).session_id for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", id) for id in ids)


@pytest.mark.holds("S3.11", "S3.14")
def test_a_session_is_found_by_its_id_and_by_no_other() -> None:
    sessions: Sessions[Record] = Sessions()
    kept = Record()
    made = sessions.create("p", kept, 5.0)
    assert sessions.find(made.session_id, "p", 6.0) is made
    assert sessions.find("x" * 32, "p", 6.0) is None
    assert (made.owner, made) == ("p", kept)
    assert (made.created_at, made.last_activity) == (5.0, 6.0)


@pytest.mark.holds("C25")
def test_for_another_principal_it_is_not_there_and_not_touched() -> None:
    sessions: Sessions[Record] = Sessions()
    made = sessions.create("p", Record(), 5.0)
    assert sessions.find(made.session_id, "q", 6.0) is None
    assert made.last_activity == 5.0


@pytest.mark.holds("S3.13")
def test_a_session_is_removed_once_and_handed_back() -> None:
    sessions: Sessions[Record] = Sessions()
    made = sessions.create("p", Record(), 0.0)
    assert list(sessions) == [made]
    assert sessions.remove(made.session_id) is made
    assert sessions.find(made.session_id, "p", 0.0) is None
    assert sessions.remove(made.session_id) is None
    assert len(sessions) == 0


@pytest.mark.holds("C26")
def test_one_that_is_idle_for_too_long_is_gone_and_waits_to_be_ended() -> None:
    sessions: Sessions[Record] = Sessions()
    made = sessions.create("p", Record(), 0.0)
    assert sessions.find(made.session_id, "p", IDLE) is made  # in use: it lives on
    assert sessions.find(made.session_id, "p", 2 * IDLE) is made
    assert sessions.find(made.session_id, "p", 3 * IDLE + 1) is None
    assert made.last_activity == 2 * IDLE
    assert len(sessions) == 1
    assert sessions.expire(3 * IDLE + 1) == [made]
    assert len(sessions) == 0


@pytest.mark.holds("C26")
def test_one_that_is_too_old_is_gone_however_busy_it_is() -> None:
    sessions: Sessions[Record] = Sessions(idle=LIFE * 2)
    made = sessions.create("p", Record(), 0.0)
    assert sessions.find(made.session_id, "p", LIFE) is made
    assert sessions.find(made.session_id, "p", LIFE + 1) is None
    assert sessions.expire(LIFE + 1) == [made]


@pytest.mark.holds("C26")
def test_expiry_takes_the_idle_and_leaves_the_others() -> None:
    sessions: Sessions[Record] = Sessions(idle=10.0)
    old = sessions.create("p", Record(), 0.0)
    new = sessions.create("p", Record(), 5.0)
    assert sessions.expire(11.0) == [old]
    assert sessions.find(new.session_id, "p", 11.0) is new
    assert sessions.expire(11.0) == []


@pytest.mark.holds("C26")
def test_one_in_which_something_goes_on_is_not_idle_but_grows_old() -> None:
    class Working(Record):
        at_work = True

        @property
        def busy(self) -> bool:
            return self.at_work

    sessions = Sessions[Working](idle=10.0, life=100.0)
    made = sessions.create("p", Working(), 0.0)
    assert sessions.find(made.session_id, "p", 50.0) is made
    assert sessions.expire(90.0) == []
    made.at_work = False
    assert sessions.find(made.session_id, "p", 100.0) is made  # it was busy until 90
    made.at_work = True
    assert sessions.expire(101.0) == [made]


@pytest.mark.holds("C26")
def test_there_are_never_too_many() -> None:
    sessions: Sessions[Record] = Sessions(idle=10.0, max_sessions=1)
    sessions.create("p", Record(), 0.0)
    with pytest.raises(TooManySessions, match="at most 1"):
        sessions.create("p", Record(), 99.0)  # the first is over, but nobody has ended it
    sessions.expire(99.0)
    sessions.create("p", Record(), 99.0)
    assert len(sessions) == 1


def test_other_limits_hold_from_now_on() -> None:
    sessions: Sessions[Record] = Sessions(idle=10, life=100, max_sessions=2)
    old = sessions.create("p", Record(), 0.0)
    sessions.create("p", Record(), 0.0)
    sessions.adopt(idle=20, life=30, max_sessions=1)
    assert len(sessions) == 2
    assert sessions.find(old.session_id, "p", 15.0) is old
    with pytest.raises(TooManySessions):
        sessions.create("p", Record(), 16.0)
    assert sessions.find(old.session_id, "p", 31.0) is None
