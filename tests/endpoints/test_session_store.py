"""The session store: create, find, remove and expire, per principal."""

import re

import pytest

from trunkline.endpoints.session_state import (
    SESSION_IDLE_TIMEOUT,
    SESSION_MAX_AGE,
    SessionRecord,
    SessionStore,
    TooManySessions,
)


@pytest.mark.holds("S3.10", "C25")
def test_an_id_is_long_random_and_printable() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore()
    ids = {sessions.create("p", SessionRecord(), 0.0).session_id for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", id) for id in ids)


@pytest.mark.holds("S3.11", "S3.14")
def test_a_session_is_found_by_its_exact_id() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore()
    kept = SessionRecord()
    made = sessions.create("p", kept, 5.0)
    assert sessions.find(made.session_id, "p", 6.0) is made
    assert sessions.find("x" * 32, "p", 6.0) is None
    assert (made.owner, made) == ("p", kept)
    assert (made.created_at, made.last_activity) == (5.0, 6.0)


@pytest.mark.holds("C25")
def test_for_another_principal_it_does_not_exist_and_is_not_touched() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore()
    made = sessions.create("p", SessionRecord(), 5.0)
    assert sessions.find(made.session_id, "q", 6.0) is None
    assert made.last_activity == 5.0


@pytest.mark.holds("S3.13")
def test_a_session_is_removed_once_and_returned() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore()
    made = sessions.create("p", SessionRecord(), 0.0)
    assert list(sessions) == [made]
    assert sessions.remove(made.session_id) is made
    assert sessions.find(made.session_id, "p", 0.0) is None
    assert sessions.remove(made.session_id) is None
    assert len(sessions) == 0


@pytest.mark.holds("C26")
def test_an_idle_session_expires_and_is_returned() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore()
    made = sessions.create("p", SessionRecord(), 0.0)
    assert sessions.find(made.session_id, "p", SESSION_IDLE_TIMEOUT) is made  # in use: it lives on
    assert sessions.find(made.session_id, "p", 2 * SESSION_IDLE_TIMEOUT) is made
    assert sessions.find(made.session_id, "p", 3 * SESSION_IDLE_TIMEOUT + 1) is None
    assert made.last_activity == 2 * SESSION_IDLE_TIMEOUT
    assert len(sessions) == 1
    assert sessions.expire(3 * SESSION_IDLE_TIMEOUT + 1) == [made]
    assert len(sessions) == 0


@pytest.mark.holds("C26")
def test_an_old_session_expires_even_if_busy() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore(idle_timeout=SESSION_MAX_AGE * 2)
    made = sessions.create("p", SessionRecord(), 0.0)
    assert sessions.find(made.session_id, "p", SESSION_MAX_AGE) is made
    assert sessions.find(made.session_id, "p", SESSION_MAX_AGE + 1) is None
    assert sessions.expire(SESSION_MAX_AGE + 1) == [made]


@pytest.mark.holds("C26")
def test_expiry_removes_only_idle_sessions() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore(idle_timeout=10.0)
    old = sessions.create("p", SessionRecord(), 0.0)
    new = sessions.create("p", SessionRecord(), 5.0)
    assert sessions.expire(11.0) == [old]
    assert sessions.find(new.session_id, "p", 11.0) is new
    assert sessions.expire(11.0) == []


@pytest.mark.holds("C26")
def test_a_busy_session_is_not_idle_but_ages() -> None:
    class Working(SessionRecord):
        at_work = True

        @property
        def is_busy(self) -> bool:
            return self.at_work

    sessions = SessionStore[Working](idle_timeout=10.0, max_age=100.0)
    made = sessions.create("p", Working(), 0.0)
    assert sessions.find(made.session_id, "p", 50.0) is made
    assert sessions.expire(90.0) == []
    made.at_work = False
    assert sessions.find(made.session_id, "p", 100.0) is made  # it was busy until 90
    made.at_work = True
    assert sessions.expire(101.0) == [made]


@pytest.mark.holds("C26")
def test_the_store_is_limited() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore(idle_timeout=10.0, max_sessions=1)
    sessions.create("p", SessionRecord(), 0.0)
    with pytest.raises(TooManySessions, match="at most 1"):
        sessions.create("p", SessionRecord(), 99.0)  # the first has expired, but is not removed
    sessions.expire(99.0)
    sessions.create("p", SessionRecord(), 99.0)
    assert len(sessions) == 1


def test_new_limits_apply_at_once() -> None:
    sessions: SessionStore[SessionRecord] = SessionStore(
        idle_timeout=10, max_age=100, max_sessions=2
    )
    old = sessions.create("p", SessionRecord(), 0.0)
    sessions.create("p", SessionRecord(), 0.0)
    sessions.reconfigure(idle_timeout=20, max_age=30, max_sessions=1)
    assert len(sessions) == 2
    assert sessions.find(old.session_id, "p", 15.0) is old
    with pytest.raises(TooManySessions):
        sessions.create("p", SessionRecord(), 16.0)
    assert sessions.find(old.session_id, "p", 31.0) is None
