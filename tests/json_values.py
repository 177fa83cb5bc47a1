"""JSON values for tests: a strategy for any value, and one that is nested too deeply."""

from typing import Any

from hypothesis import strategies as st

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)

DEEP = b"[" * 100_000 + b"]" * 100_000
