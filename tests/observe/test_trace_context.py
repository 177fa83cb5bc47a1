"""`traceparent` as W3C has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.observe.trace_context import TraceContext, read, write

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-is-like", True),
    ],
)
def test_what_is_valid_is_read(text: str, sampled: bool) -> None:
    assert read(text) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01.",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_what_is_not_is_not(text: str) -> None:
    assert read(text) is None


@given(st.text())
def test_any_text_gives_a_context_or_none(text: str) -> None:
    assert read(text) is None or len(text) >= 55


def test_what_is_written_is_read() -> None:
    assert read(write(TRACE, SPAN)) == TraceContext(TRACE, SPAN, True)
