"""The revisions, their eras, and what differs between them."""

import pytest

from trunkline.mcp.versions import (
    REVISIONS,
    SESSION_REVISIONS,
    STATELESS_REVISIONS,
    V2025_03_26,
    V2025_11_25,
    V2026_07_28,
    Era,
    Revision,
    find_revision,
    find_session_revision,
    list_dates,
    negotiate_revision,
)


@pytest.mark.holds("C16")
@pytest.mark.parametrize("revision", SESSION_REVISIONS)
def test_a_revision_that_is_known_is_echoed(revision: Revision) -> None:
    assert negotiate_revision(revision.date) is revision


@pytest.mark.holds("C16")
@pytest.mark.parametrize("date", ["2026-07-28", "9999", "", "2024-10-07", "draft"])
def test_unknown_revisions_get_the_latest_session_revision(date: str) -> None:
    assert negotiate_revision(date) is V2025_11_25


def test_a_revision_is_found_by_its_date() -> None:
    for revision in REVISIONS:
        assert find_revision(revision.date) is revision
        assert find_session_revision(revision.date) is (
            revision if revision in SESSION_REVISIONS else None
        )
    assert find_revision("2023-01-01") is None
    assert find_session_revision("2023-01-01") is None


def test_revisions_are_ordered_by_date_and_every_one_has_an_era() -> None:
    assert list_dates(REVISIONS) == sorted(list_dates(REVISIONS))
    assert SESSION_REVISIONS + STATELESS_REVISIONS == REVISIONS
    eras = [revision.era for revision in REVISIONS]
    assert eras == [Era.SESSION] * 4 + [Era.STATELESS]


def test_revisions_are_compared_by_identity_and_cannot_change() -> None:
    assert len(set(REVISIONS)) == len(REVISIONS)
    with pytest.raises(AttributeError):
        V2025_11_25.date = "2099-01-01"  # type: ignore[misc]


def test_one_revision_allows_batches() -> None:
    assert [revision for revision in REVISIONS if revision.allows_batches] == [V2025_03_26]


def test_a_stateless_revision_has_no_streams_to_resume() -> None:
    for revision in STATELESS_REVISIONS:
        assert not revision.has_resumable_streams
        assert not revision.has_priming_events
    assert V2026_07_28.is_stateless
