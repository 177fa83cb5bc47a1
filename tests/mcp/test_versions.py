"""The revisions and their eras."""

import pytest

from trunkline.mcp.versions import (
    HANDSHAKE_VERSIONS,
    VERSIONS,
    Era,
    allows_batches,
    era_of,
    negotiate,
)


@pytest.mark.holds("C16")
@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_a_revision_that_is_known_is_echoed(version: str) -> None:
    assert negotiate(version) == version


@pytest.mark.holds("C16")
@pytest.mark.parametrize("version", ["2026-07-28", "9999", "", "2024-10-07", "draft"])
def test_any_other_is_answered_with_the_latest_handshake(version: str) -> None:
    assert negotiate(version) == "2025-11-25"


def test_every_revision_has_an_era_and_others_have_none() -> None:
    eras = [era_of(version) for version in VERSIONS]
    assert eras == [Era.HANDSHAKE] * 4 + [Era.ENVELOPE]
    assert era_of("2023-01-01") is None
    assert list(VERSIONS) == sorted(VERSIONS)


def test_one_revision_allows_batches() -> None:
    assert [v for v in (*VERSIONS, None) if allows_batches(v)] == ["2025-03-26"]
