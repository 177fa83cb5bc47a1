"""What holds records together."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from trunkline.journal.chain import SIZE, Head, beginning, follow, hashes


def test_a_chain_begins_with_its_name() -> None:
    head = beginning("abc")
    assert head == Head("abc", 0, hashlib.sha256(b"trunkline journal abc").digest())
    assert beginning("abd").hash != head.hash


def test_a_hash_covers_what_came_before_and_the_record() -> None:
    first = follow(beginning("a").hash, b"{}")
    assert first == hashlib.sha256(beginning("a").hash + b"{}").digest()
    assert str(Head("a", 1, first)) == f"1:{first.hex()}"


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=20), st.data())
def test_whatever_is_changed_changes_all_that_follow(
    bodies: list[bytes], data: st.DataObject
) -> None:
    start = beginning("a").hash
    whole = list(hashes(start, bodies))
    assert all(len(each) == SIZE for each in whole)
    place = data.draw(st.integers(0, len(bodies) - 1))
    changed = [*bodies[:place], bodies[place] + b"!", *bodies[place + 1 :]]
    other = list(hashes(start, changed))
    assert other[:place] == whole[:place]
    assert not set(other[place:]) & set(whole[place:])
