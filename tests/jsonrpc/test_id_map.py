"""Gateway ids: unique, restored exactly, and not kept longer than needed."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Id, IdRemapper, RemappedCall


@pytest.mark.holds("S0.13", "S0.12")
def test_the_first_id_is_one() -> None:
    assert IdRemapper().remap("x", "fs") == 1


@pytest.mark.holds("S0.14", "S0.19")
def test_one_id_towards_two_backends_becomes_two_ids() -> None:
    remapper = IdRemapper()
    assert remapper.remap(7, "fs") != remapper.remap(7, "web")


@pytest.mark.holds("S0.15", "S0.16", "S0.17", "M8")
def test_a_remapped_id_is_restored_once() -> None:
    remapper = IdRemapper()
    id = remapper.remap("abc", "fs")
    assert remapper.pending_count() == 1
    assert remapper.restore(id) == ("abc", "fs")
    assert remapper.pending_count() == 0
    assert remapper.restore(id) is None


@pytest.mark.holds("S0.15", "S0.3", "C5")
@pytest.mark.parametrize("original", [1, "1", None, "", -1, 10**40])
def test_the_type_of_an_id_is_restored_too(original: Id) -> None:
    remapper = IdRemapper()
    restored = remapper.restore(remapper.remap(original, "fs"))
    assert restored is not None
    assert type(restored[0]) is type(original)
    assert restored == (original, "fs")


@pytest.mark.holds("S0.20")
@pytest.mark.parametrize("unknown", [0, 2, -1, "1", None, True, 1.0])
def test_an_unknown_id_restores_nothing(unknown: object) -> None:
    remapper = IdRemapper()
    remapper.remap("x", "fs")
    assert remapper.restore(unknown) is None
    assert remapper.pending_count() == 1


def test_a_forgotten_id_is_gone() -> None:
    remapper = IdRemapper()
    id = remapper.remap("x", "fs")
    assert remapper.forget(id)
    assert not remapper.forget(id)
    assert remapper.restore(id) is None


def test_operators_see_what_is_pending_oldest_first() -> None:
    remapper = IdRemapper()
    first, second, third = (remapper.remap(id, "fs") for id in (9, "x", None))
    remapper.restore(second)
    assert remapper.pending() == (RemappedCall(first, 9, "fs"), RemappedCall(third, None, "fs"))


@pytest.mark.holds("S0.18")
def test_ten_threads_get_a_thousand_different_ids() -> None:
    remapper, together = IdRemapper(), Barrier(10)

    def remap(thread: int) -> list[int]:
        together.wait()
        return [remapper.remap(n, str(thread)) for n in range(100)]

    with ThreadPoolExecutor(10) as pool:
        ids = [id for found in pool.map(remap, range(10)) for id in found]
    assert sorted(ids) == list(range(1, 1001))
    assert remapper.pending_count() == 1000


@pytest.mark.holds("S0.18")
def test_an_id_raced_for_is_restored_to_one_thread_only() -> None:
    remapper, together = IdRemapper(), Barrier(8)
    ids = [remapper.remap(n, "fs") for n in range(200)]

    def restore(_: int) -> int:
        together.wait()
        return sum(remapper.restore(id) is not None for id in ids)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(restore, range(8))) == 200
    assert remapper.pending_count() == 0


@given(st.lists(st.tuples(st.sampled_from(["remap", "restore", "forget"]), st.integers(0, 8))))
def test_pending_ids_are_those_remapped_and_not_yet_removed(steps: list[tuple[str, int]]) -> None:
    remapper, model = IdRemapper(), dict[int, int]()
    for step, n in steps:
        if step == "remap":
            model[remapper.remap(n, "fs")] = n
        elif step == "restore":
            expected = (model.pop(n), "fs") if n in model else None
            assert remapper.restore(n) == expected
        else:
            assert remapper.forget(n) == (model.pop(n, None) is not None)
        assert remapper.pending_count() == len(model)
    assert remapper.pending() == tuple(RemappedCall(id, n, "fs") for id, n in model.items())
