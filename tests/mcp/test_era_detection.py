"""How answers classify a server's era, and which requests detect it."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError
from trunkline.mcp.era_detection import (
    DetectionStep,
    EraDetection,
    ProbeResult,
    ProbeTimeouts,
    classify_discovery,
    classify_error,
    classify_http_status,
    classify_initialize_error,
)
from trunkline.mcp.negotiation import Discovery
from trunkline.mcp.versions import V2025_11_25, V2026_07_28, Era, Revision


@pytest.mark.parametrize(
    ("revisions", "result"),
    [
        ((V2026_07_28,), ProbeResult.STATELESS),
        ((V2025_11_25, V2026_07_28), ProbeResult.STATELESS),
        ((V2025_11_25,), ProbeResult.SESSION),
        ((), ProbeResult.SESSION),
    ],
)
def test_a_successful_answer_is_classified_by_its_versions(
    revisions: tuple[Revision, ...], result: ProbeResult
) -> None:
    assert classify_discovery(Discovery(revisions, {}, Raw(b"{}"), None)) is result


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32001, -32603, -32700, 7])
def test_other_errors_mean_a_session_server(code: int) -> None:
    assert classify_error(RpcError(code, "no")) is ProbeResult.SESSION


@pytest.mark.parametrize("code", [-32020, -32021])
def test_a_stateless_only_error_code_proves_the_era(code: int) -> None:
    assert classify_error(RpcError(code, "no")) is ProbeResult.STATELESS


@pytest.mark.parametrize(
    ("data", "result"),
    [
        ({"supported": ["2026-07-28"]}, ProbeResult.OTHER_VERSION),
        (Raw(b'{"supported":["2025-11-25","2026-07-28"]}'), ProbeResult.OTHER_VERSION),
        ({"supported": ["2025-06-18"]}, ProbeResult.SESSION),
        ({"supported": ["2099-01-01"]}, ProbeResult.INCOMPATIBLE),
        ({"supported": []}, ProbeResult.SESSION),
        ({"supported": "2026-07-28"}, ProbeResult.SESSION),
        ({}, ProbeResult.SESSION),
        (["2026-07-28"], ProbeResult.SESSION),
        (Raw(b'{"supported":[1e999]}'), ProbeResult.SESSION),
        (None, ProbeResult.SESSION),
        (UNSET, ProbeResult.SESSION),
    ],
)
def test_an_unsupported_version_error_is_classified_by_the_supported_ones(
    data: Any, result: ProbeResult
) -> None:
    assert classify_error(RpcError(-32022, "Unsupported protocol version", data)) is result


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_an_initialize_error_with_a_stateless_code_means_stateless(code: int) -> None:
    for data in (UNSET, {"supported": ["2026-07-28"]}):
        assert classify_initialize_error(RpcError(code, "no", data)) is ProbeResult.STATELESS


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32603, 7])
def test_other_initialize_errors_mean_session(code: int) -> None:
    assert classify_initialize_error(RpcError(code, "no")) is ProbeResult.SESSION


@pytest.mark.parametrize("result", list(ProbeResult))
@pytest.mark.parametrize(
    "status", [200, 202, 301, 302, 307, 401, 403, 407, 408, 425, 429, 500, 502, 503, 599]
)
def test_an_inconclusive_status_is_unknown(status: int, result: ProbeResult) -> None:
    assert classify_http_status(status, result) is ProbeResult.UNKNOWN


@pytest.mark.parametrize("result", list(ProbeResult))
@pytest.mark.parametrize("status", [400, 404, 405, 406, 415])
def test_with_other_statuses_the_body_decides(status: int, result: ProbeResult) -> None:
    assert classify_http_status(status, result) is result


Event = Callable[[EraDetection], None]


def discover_answered(result: ProbeResult, certain: bool = True) -> Event:
    return lambda detection: detection.record_discover_result(result, certain)


def initialize_rejected(result: ProbeResult) -> Event:
    return lambda detection: detection.record_initialize_error(result)


NO_DISCOVER = discover_answered(ProbeResult.SESSION)
DISCOVER, INITIALIZE, WAIT, RESTART, FAIL = DetectionStep


def walk(cached_era: Era | None, *story: DetectionStep | Event) -> EraDetection:
    """Expect these steps, with these events in between."""
    detection = EraDetection(cached_era)
    for number, part in enumerate(story):
        if isinstance(part, DetectionStep):
            assert detection.next_step() is part, f"at {number}"
        else:
            part(detection)
    return detection


@pytest.mark.parametrize("cached_era", [None, Era.STATELESS])
def test_discover_is_sent_first(cached_era: Era | None) -> None:
    walk(cached_era, DISCOVER, WAIT, WAIT)


def test_a_server_without_discover_gets_initialize() -> None:
    detection = walk(None, DISCOVER, WAIT, NO_DISCOVER, INITIALIZE, WAIT)
    assert detection.is_conclusive
    assert detection.timeout is None  # `initialize` has no timeout


@pytest.mark.holds("T104")
def test_a_silent_server_gets_initialize_as_well() -> None:
    detection = walk(None, DISCOVER)
    assert detection.timeout == ProbeTimeouts().usual
    detection = walk(None, DISCOVER, EraDetection.record_timeout, INITIALIZE, WAIT)
    assert not detection.is_conclusive
    late = walk(None, DISCOVER, EraDetection.record_timeout, INITIALIZE, NO_DISCOVER, WAIT)
    assert late.is_conclusive  # it was slow to start; its answer counts now


def test_a_known_stateless_server_gets_more_time() -> None:
    assert walk(Era.STATELESS, DISCOVER).timeout == ProbeTimeouts().long


@pytest.mark.holds("T105")
def test_a_server_that_exits_when_probed_is_restarted_with_initialize() -> None:
    for events in (EraDetection.record_timeout, NO_DISCOVER):
        detection = walk(
            None, DISCOVER, events, EraDetection.record_exit, RESTART, INITIALIZE, WAIT
        )
        assert detection.is_conclusive
        assert detection.timeout is None


def test_a_server_that_exits_again_has_failed() -> None:
    end = EraDetection.record_exit
    detection = walk(None, DISCOVER, end, RESTART, INITIALIZE, end, FAIL)
    assert detection.failed_step is INITIALIZE
    walk(None, DISCOVER, end, RESTART, INITIALIZE, initialize_rejected(ProbeResult.SESSION), FAIL)
    walk(None, DISCOVER, end, RESTART, INITIALIZE, initialize_rejected(ProbeResult.STATELESS), FAIL)


def test_a_server_that_exits_before_a_probe_has_failed() -> None:
    walk(Era.SESSION, INITIALIZE, EraDetection.record_exit, FAIL)


@pytest.mark.holds("T108")
def test_a_known_session_server_gets_initialize_and_then_discover() -> None:
    detection = walk(Era.SESSION, INITIALIZE, WAIT)
    assert detection.timeout is None
    assert not detection.is_conclusive
    for result in (ProbeResult.SESSION, ProbeResult.STATELESS, ProbeResult.INCOMPATIBLE):
        detection = walk(Era.SESSION, INITIALIZE, initialize_rejected(result), DISCOVER, WAIT)
        assert detection.timeout == ProbeTimeouts().long
        walk(
            Era.SESSION,
            INITIALIZE,
            initialize_rejected(result),
            DISCOVER,
            EraDetection.record_timeout,
            FAIL,
        )
        detection = walk(
            Era.SESSION, INITIALIZE, initialize_rejected(result), DISCOVER, NO_DISCOVER, FAIL
        )
        assert detection.failed_step is INITIALIZE


def test_a_server_that_rejects_initialize_as_stateless_gets_discover_again() -> None:
    modern = initialize_rejected(ProbeResult.STATELESS)
    walk(None, DISCOVER, NO_DISCOVER, INITIALIZE, modern, DISCOVER, WAIT)
    walk(None, DISCOVER, NO_DISCOVER, INITIALIZE, modern, DISCOVER, NO_DISCOVER, FAIL)
    detection = walk(
        None, DISCOVER, EraDetection.record_timeout, INITIALIZE, modern, WAIT
    )  # the first request is still outstanding
    assert detection.timeout == ProbeTimeouts().long
    detection.record_timeout()
    assert detection.next_step() is FAIL
    given_up = discover_answered(ProbeResult.SESSION, certain=False)
    assert not walk(None, DISCOVER, given_up, INITIALIZE).is_conclusive
    walk(None, DISCOVER, given_up, INITIALIZE, modern, DISCOVER)


def test_a_server_that_rejects_both_has_failed() -> None:
    detection = walk(
        None, DISCOVER, NO_DISCOVER, INITIALIZE, initialize_rejected(ProbeResult.SESSION), FAIL
    )
    assert detection.failed_step is INITIALIZE
    late = walk(
        None,
        DISCOVER,
        EraDetection.record_timeout,
        INITIALIZE,
        initialize_rejected(ProbeResult.SESSION),
        WAIT,
    )
    NO_DISCOVER(late)
    assert late.next_step() is FAIL


@pytest.mark.parametrize(
    "result", [ProbeResult.STATELESS, ProbeResult.INCOMPATIBLE, ProbeResult.UNKNOWN]
)
def test_a_conclusive_failure_of_discover_ends_the_detection(result: ProbeResult) -> None:
    detection = walk(None, DISCOVER, discover_answered(result), FAIL)
    assert detection.failed_step is DISCOVER
    walk(None, DISCOVER, EraDetection.record_timeout, INITIALIZE, discover_answered(result), FAIL)


def test_a_server_that_refuses_a_version_it_supports_is_asked_once_more() -> None:
    refused = discover_answered(ProbeResult.OTHER_VERSION)
    detection = walk(None, DISCOVER, refused, DISCOVER, WAIT, refused, FAIL)
    assert detection.failed_step is DISCOVER
    walk(None, DISCOVER, refused, DISCOVER, NO_DISCOVER, INITIALIZE)
    walk(None, DISCOVER, EraDetection.record_timeout, INITIALIZE, refused, WAIT)


def test_an_inconclusive_answer_ends_the_detection() -> None:
    detection = walk(Era.SESSION, INITIALIZE, initialize_rejected(ProbeResult.UNKNOWN), FAIL)
    assert detection.failed_step is INITIALIZE
    walk(None, DISCOVER, NO_DISCOVER, INITIALIZE, initialize_rejected(ProbeResult.UNKNOWN), FAIL)


@given(
    st.sampled_from([None, *Era]),
    st.lists(
        st.tuples(
            st.sampled_from(["probe", "hello", "silent", "ended"]), st.sampled_from(ProbeResult)
        )
    ),
)
def test_the_detection_always_terminates(
    cached_era: Era | None, events: list[tuple[str, ProbeResult]]
) -> None:
    detection, steps, outstanding = (
        EraDetection(cached_era),
        list[DetectionStep](),
        set[DetectionStep](),
    )
    for event, result in events:
        while (step := detection.next_step()) not in (WAIT, FAIL):
            steps.append(step)
            assert step not in outstanding  # no request is repeated while it is outstanding
            outstanding = set[DetectionStep]() if step is RESTART else outstanding | {step}
        if step is FAIL:
            assert detection.next_step() is FAIL
            break
        assert outstanding  # it waits only for outstanding requests
        if event == "probe" and DISCOVER in outstanding:
            outstanding.discard(DISCOVER)
            detection.record_discover_result(result)
        elif event == "hello" and INITIALIZE in outstanding:
            outstanding.discard(INITIALIZE)
            detection.record_initialize_error(result)
        elif event == "silent" and detection.timeout is not None:
            detection.record_timeout()
        elif event == "ended":
            detection.record_exit()
    assert steps.count(DISCOVER) <= 2
    assert steps.count(INITIALIZE) <= 2
    assert steps.count(RESTART) <= 1
