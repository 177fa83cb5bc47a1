"""What a server is asked next, after what was heard of it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.mcp.inquiry import LONG_PATIENCE, PATIENCE, Inquiry, Step
from trunkline.mcp.probe import Verdict
from trunkline.mcp.versions import Era

Hear = Callable[[Inquiry], None]


def discovered(verdict: Verdict, certain: bool = True) -> Hear:
    return lambda inquiry: inquiry.discovered(verdict, certain)


def refused(verdict: Verdict) -> Hear:
    return lambda inquiry: inquiry.refused(verdict)


NO = discovered(Verdict.HANDSHAKE)
DISCOVER, INITIALIZE, WAIT, START_AGAIN, FAIL = Step


def walk(remembered: Era | None, *story: Step | Hear) -> Inquiry:
    """Expect these steps, and hear these things in between."""
    inquiry = Inquiry(remembered)
    for number, part in enumerate(story):
        if isinstance(part, Step):
            assert inquiry.next() is part, f"at {number}"
        else:
            part(inquiry)
    return inquiry


@pytest.mark.parametrize("remembered", [None, Era.ENVELOPE])
def test_a_server_is_asked_to_discover_first(remembered: Era | None) -> None:
    walk(remembered, DISCOVER, WAIT, WAIT)


def test_a_server_that_does_not_know_it_is_asked_to_shake_hands() -> None:
    inquiry = walk(None, DISCOVER, WAIT, NO, INITIALIZE, WAIT)
    assert inquiry.conclusive
    assert inquiry.patience is None  # `initialize` may take as long as it takes


@pytest.mark.holds("T104")
def test_a_silent_server_is_asked_to_shake_hands_as_well() -> None:
    inquiry = walk(None, DISCOVER)
    assert inquiry.patience == PATIENCE
    inquiry = walk(None, DISCOVER, Inquiry.silent, INITIALIZE, WAIT)
    assert not inquiry.conclusive
    late = walk(None, DISCOVER, Inquiry.silent, INITIALIZE, NO, WAIT)
    assert late.conclusive  # it was starting; now it has said so


def test_a_server_that_was_known_to_discover_is_given_more_time() -> None:
    assert walk(Era.ENVELOPE, DISCOVER).patience == LONG_PATIENCE


@pytest.mark.holds("T105")
def test_a_server_that_ends_when_it_is_probed_is_started_again_and_shakes_hands() -> None:
    for heard in (Inquiry.silent, NO):
        inquiry = walk(None, DISCOVER, heard, Inquiry.ended, START_AGAIN, INITIALIZE, WAIT)
        assert inquiry.conclusive
        assert inquiry.patience is None


def test_a_server_that_ends_again_has_failed() -> None:
    end = Inquiry.ended
    inquiry = walk(None, DISCOVER, end, START_AGAIN, INITIALIZE, end, FAIL)
    assert inquiry.blame is INITIALIZE
    walk(None, DISCOVER, end, START_AGAIN, INITIALIZE, refused(Verdict.HANDSHAKE), FAIL)
    walk(None, DISCOVER, end, START_AGAIN, INITIALIZE, refused(Verdict.ENVELOPE), FAIL)


def test_a_server_that_ends_without_a_probe_has_failed() -> None:
    walk(Era.HANDSHAKE, INITIALIZE, Inquiry.ended, FAIL)


@pytest.mark.holds("T108")
def test_a_server_that_was_known_to_shake_hands_is_asked_to_and_then_to_discover() -> None:
    inquiry = walk(Era.HANDSHAKE, INITIALIZE, WAIT)
    assert inquiry.patience is None
    assert not inquiry.conclusive
    for verdict in (Verdict.HANDSHAKE, Verdict.ENVELOPE, Verdict.INCOMPATIBLE):
        inquiry = walk(Era.HANDSHAKE, INITIALIZE, refused(verdict), DISCOVER, WAIT)
        assert inquiry.patience == LONG_PATIENCE
        walk(Era.HANDSHAKE, INITIALIZE, refused(verdict), DISCOVER, Inquiry.silent, FAIL)
        inquiry = walk(Era.HANDSHAKE, INITIALIZE, refused(verdict), DISCOVER, NO, FAIL)
        assert inquiry.blame is INITIALIZE


def test_a_server_that_refuses_as_only_the_envelope_era_does_was_slow_and_is_asked_again() -> None:
    modern = refused(Verdict.ENVELOPE)
    walk(None, DISCOVER, NO, INITIALIZE, modern, DISCOVER, WAIT)
    walk(None, DISCOVER, NO, INITIALIZE, modern, DISCOVER, NO, FAIL)
    inquiry = walk(None, DISCOVER, Inquiry.silent, INITIALIZE, modern, WAIT)  # the first still runs
    assert inquiry.patience == LONG_PATIENCE
    inquiry.silent()
    assert inquiry.next() is FAIL
    given_up = discovered(Verdict.HANDSHAKE, certain=False)
    assert not walk(None, DISCOVER, given_up, INITIALIZE).conclusive
    walk(None, DISCOVER, given_up, INITIALIZE, modern, DISCOVER)


def test_a_server_that_refuses_both_has_failed() -> None:
    inquiry = walk(None, DISCOVER, NO, INITIALIZE, refused(Verdict.HANDSHAKE), FAIL)
    assert inquiry.blame is INITIALIZE
    late = walk(None, DISCOVER, Inquiry.silent, INITIALIZE, refused(Verdict.HANDSHAKE), WAIT)
    NO(late)
    assert late.next() is FAIL


@pytest.mark.parametrize("verdict", [Verdict.ENVELOPE, Verdict.INCOMPATIBLE, Verdict.UNKNOWN])
def test_a_probe_that_is_answered_with_what_is_no_way_out_has_failed(verdict: Verdict) -> None:
    inquiry = walk(None, DISCOVER, discovered(verdict), FAIL)
    assert inquiry.blame is DISCOVER
    walk(None, DISCOVER, Inquiry.silent, INITIALIZE, discovered(verdict), FAIL)


def test_a_server_that_cannot_be_asked_is_not_asked_anything_else() -> None:
    inquiry = walk(Era.HANDSHAKE, INITIALIZE, refused(Verdict.UNKNOWN), FAIL)
    assert inquiry.blame is INITIALIZE
    walk(None, DISCOVER, NO, INITIALIZE, refused(Verdict.UNKNOWN), FAIL)


@given(
    st.sampled_from([None, *Era]),
    st.lists(
        st.tuples(st.sampled_from(["probe", "hello", "silent", "ended"]), st.sampled_from(Verdict))
    ),
)
def test_it_ends_whatever_is_heard(
    remembered: Era | None, heard: list[tuple[str, Verdict]]
) -> None:
    inquiry, steps, asked = Inquiry(remembered), list[Step](), set[Step]()
    for what, verdict in heard:
        while (step := inquiry.next()) not in (WAIT, FAIL):
            steps.append(step)
            assert step not in asked  # the same is not asked while it is unanswered
            asked = set[Step]() if step is START_AGAIN else asked | {step}
        if step is FAIL:
            assert inquiry.next() is FAIL
            break
        assert asked  # nobody waits for nothing
        if what == "probe" and DISCOVER in asked:
            asked.discard(DISCOVER)
            inquiry.discovered(verdict)
        elif what == "hello" and INITIALIZE in asked:
            asked.discard(INITIALIZE)
            inquiry.refused(verdict)
        elif what == "silent" and inquiry.patience is not None:
            inquiry.silent()
        elif what == "ended":
            inquiry.ended()
    assert steps.count(DISCOVER) <= 2
    assert steps.count(INITIALIZE) <= 2
    assert steps.count(START_AGAIN) <= 1
