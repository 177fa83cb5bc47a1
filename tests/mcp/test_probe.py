"""Which era a server belongs to, and which answers do not say."""

from typing import Any

import pytest

from trunkline.jsonrpc import UNSET, Raw, RpcError
from trunkline.mcp.discover import Discovery
from trunkline.mcp.probe import (
    Verdict,
    judge_discovery,
    judge_error,
    judge_refusal,
    judge_status,
)


@pytest.mark.parametrize(
    ("versions", "verdict"),
    [
        (("2026-07-28",), Verdict.ENVELOPE),
        (("2025-11-25", "2026-07-28"), Verdict.ENVELOPE),
        (("2025-11-25",), Verdict.HANDSHAKE),
        (("2099-01-01",), Verdict.HANDSHAKE),
        ((), Verdict.HANDSHAKE),
    ],
)
def test_a_server_that_answers_is_judged_by_the_versions_that_it_names(
    versions: tuple[str, ...], verdict: Verdict
) -> None:
    assert judge_discovery(Discovery(versions, {}, Raw(b"{}"), None)) is verdict


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32001, -32603, -32700, 7])
def test_an_error_of_any_code_is_what_a_server_of_the_handshake_says(code: int) -> None:
    assert judge_error(RpcError(code, "no")) is Verdict.HANDSHAKE


@pytest.mark.parametrize("code", [-32020, -32021])
def test_an_error_that_only_the_envelope_era_has_proves_it(code: int) -> None:
    assert judge_error(RpcError(code, "no")) is Verdict.ENVELOPE


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        ({"supported": ["2026-07-28"]}, Verdict.ENVELOPE),
        (Raw(b'{"supported":["2025-11-25","2026-07-28"]}'), Verdict.ENVELOPE),
        ({"supported": ["2025-06-18"]}, Verdict.HANDSHAKE),
        ({"supported": ["2099-01-01"]}, Verdict.INCOMPATIBLE),
        ({"supported": []}, Verdict.HANDSHAKE),
        ({"supported": "2026-07-28"}, Verdict.HANDSHAKE),
        ({}, Verdict.HANDSHAKE),
        (["2026-07-28"], Verdict.HANDSHAKE),
        (Raw(b'{"supported":[1e999]}'), Verdict.HANDSHAKE),
        (None, Verdict.HANDSHAKE),
        (UNSET, Verdict.HANDSHAKE),
    ],
)
def test_an_unsupported_version_is_judged_by_those_that_are_supported(
    data: Any, verdict: Verdict
) -> None:
    assert judge_error(RpcError(-32022, "Unsupported protocol version", data)) is verdict


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_whoever_refuses_a_handshake_as_only_the_envelope_era_does_belongs_to_it(code: int) -> None:
    for data in (UNSET, {"supported": ["2026-07-28"]}):
        assert judge_refusal(RpcError(code, "no", data)) is Verdict.ENVELOPE


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32603, 7])
def test_whoever_refuses_a_handshake_otherwise_has_said_nothing_new(code: int) -> None:
    assert judge_refusal(RpcError(code, "no")) is Verdict.HANDSHAKE


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize(
    "status", [200, 202, 301, 302, 307, 401, 403, 407, 408, 425, 429, 500, 502, 503, 599]
)
def test_a_status_that_says_nothing_about_the_era_is_no_verdict(
    status: int, verdict: Verdict
) -> None:
    assert judge_status(status, verdict) is Verdict.UNKNOWN


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("status", [400, 404, 405, 406, 415])
def test_with_any_other_status_it_is_the_body_that_counts(status: int, verdict: Verdict) -> None:
    assert judge_status(status, verdict) is verdict
