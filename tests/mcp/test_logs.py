"""Log levels: who wants to read what."""

from typing import Any

import pytest

from trunkline.jsonrpc import UNSET, Raw
from trunkline.mcp.logs import LEVELS, chattiest, is_loud_enough


def test_the_chattiest_level_leaves_nobody_out() -> None:
    assert chattiest({"error", "info", "emergency"}) == "info"
    assert chattiest({"alert"}) == "alert"
    assert chattiest(set()) is None


@pytest.mark.parametrize("wanted", LEVELS)
def test_a_client_reads_what_is_as_grave_as_it_wants(wanted: str) -> None:
    heard = [level for level in LEVELS if is_loud_enough({"level": level}, wanted)]
    assert heard == list(LEVELS[LEVELS.index(wanted) :])


def test_without_a_wish_everything_is_read() -> None:
    assert is_loud_enough({"level": "debug"}, None)


@pytest.mark.parametrize(
    "params",
    [
        UNSET,
        None,
        {},
        [],
        {"level": "strange"},
        {"level": 3},
        {"level": ["debug"]},
        {"level": None},
        Raw(b'{"level":1e999}'),
        Raw(b'{"level":"debug","level":"debug"}'),
    ],
)
def test_what_does_not_say_how_grave_it_is_is_not_held_back(params: Any) -> None:
    assert is_loud_enough(params, "emergency")
