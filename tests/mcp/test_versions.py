"""The revisions and their eras."""

import pytest

from trunkline.mcp.versions import (
    SESSION_VERSIONS,
    VERSIONS,
    Era,
    allows_batches,
    era_of,
    negotiate_version,
)


@pytest.mark.holds("C16")
@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_revision_that_is_known_is_echoed(version: str) -> None:
    assert negotiate_version(version) == version


@pytest.mark.holds("C16")
@pytest.mark.parametrize("version", ["2026-07-28", "9999", "", "2024-10-07", "draft"])
def test_unknown_revisions_get_the_latest_session_revision(version: str) -> None:
    assert negotiate_version(version) == "2025-11-25"


def test_every_revision_has_an_era_and_others_have_none() -> None:
    eras = [era_of(version) for version in VERSIONS]
    assert eras == [Era.SESSION] * 4 + [Era.STATELESS]
    assert era_of("2023-01-01") is None
    assert list(VERSIONS) == sorted(VERSIONS)


def test_one_revision_allows_batches() -> None:
    assert [v for v in (*VERSIONS, None) if allows_batches(v)] == ["2025-03-26"]
