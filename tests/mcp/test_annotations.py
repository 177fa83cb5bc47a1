"""What a tool's server says of it, and what counts where it does not."""

from typing import Any

import pytest

from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.annotations import HINTS, read_hints


def hints(annotations: Any) -> dict[str, bool]:
    return read_hints(to_raw({"name": "t", "annotations": annotations}))


@pytest.mark.parametrize(
    "annotations", [None, {}, [], "x", {"readOnlyHint": "yes", "destructiveHint": 0, "title": "T"}]
)
def test_what_is_not_said_or_makes_no_sense_is_taken_for_the_worse(annotations: Any) -> None:
    assert hints(annotations) == dict(HINTS)
    assert hints(annotations)["destructiveHint"]


def test_without_annotations_or_a_definition_the_worse_counts_too() -> None:
    assert read_hints(Raw(b"{}")) == dict(HINTS)
    assert read_hints(Raw(b"[]")) == dict(HINTS)


def test_what_is_said_counts() -> None:
    said = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True}
    assert hints(said) == dict(HINTS) | said


def test_a_tool_that_only_reads_destroys_nothing_unless_it_says_so() -> None:
    assert not hints({"readOnlyHint": True})["destructiveHint"]
    assert hints({"readOnlyHint": True, "destructiveHint": True})["destructiveHint"]
