"""What is wanted is found, whether it is on a sheet or alone."""

from pathlib import Path

import pytest

from tests.journal.samples import entries, sheets, written
from trunkline.journal import search as module
from trunkline.journal.search import newest, search
from trunkline.journal.store import Filter


@pytest.mark.parametrize("step", [1, 2, 1000])
def test_records_are_found_in_order_wherever_they_are(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STEP", step)
    made = written(tmp_path, 5)
    made.append([*sheets(10, 6), *entries(2, 16), *sheets(13, 18)])
    every = [f"fs__tool_{n}" for n in range(1, 31)]
    wanted = Filter(tool="fs__*")
    assert [row.name for row in search(made.store, wanted)] == every
    assert [row.name for row in search(made.store, wanted, newest=True)] == every[::-1]
    assert [row.name for row in newest(made.store, wanted, 17)] == every[-17:]
    assert [row.name for row in newest(made.store, Filter(tool="fs__tool_1?"), 3)] == [
        f"fs__tool_{n}" for n in (17, 18, 19)
    ]
    assert len(newest(made.store, Filter(since=1010.0, until=1020.0), 100)) == 10
    assert newest(made.store, wanted, 0) == []
    made.store.close()
