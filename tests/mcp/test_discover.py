"""What a server of the envelope era says about itself, written and read."""

from typing import Any

import pytest

from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.mcp.discover import discovery, read_discovery

SERVER = "io.modelcontextprotocol/serverInfo"


def test_what_is_said_has_all_that_a_client_expects() -> None:
    said = discovery({"tools": {}}, {"name": "g"}, None)
    assert said == {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER: {"name": "g"}},
    }
    assert discovery({}, {}, "Use it.")["instructions"] == "Use it."


def test_what_is_said_is_what_is_read() -> None:
    found = read_discovery(to_raw(discovery({"tools": {}}, {"name": "g"}, "Use it.")))
    assert found.versions == ("2026-07-28",)
    assert (found.capabilities, found.instructions) == ({"tools": {}}, "Use it.")
    assert from_raw(found.server) == {"name": "g"}


def test_only_the_versions_must_be_there() -> None:
    found = read_discovery(Raw(b'{"supportedVersions":["2025-11-25","x"],"instructions":7}'))
    assert found.versions == ("2025-11-25", "x")
    assert (found.capabilities, found.instructions) == ({}, None)
    assert bytes(found.server) == b"{}"


@pytest.mark.parametrize(
    "result",
    [
        [],
        {},
        {"supportedVersions": "2026-07-28"},
        {"supportedVersions": [1]},
        {"supportedVersions": [], "capabilities": None},
        {"supportedVersions": [], "capabilities": []},
        {"supportedVersions": [], "_meta": 5},
        {"supportedVersions": [], "instructions": Raw(b"1e999")},
        Raw(b'{"supportedVersions":[],"supportedVersions":[]}'),
    ],
)
def test_what_is_no_answer_is_refused(result: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_discovery(to_raw(result))
