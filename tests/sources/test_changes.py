"""The change log: chained, signed, and leading to the registry that it is about."""

import copy
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.registries import PUBKEY, TREE, category, signed
from tests.sources.test_keys import SIGNER
from trunkline.sources.changes import (
    BEGINNING,
    BadLog,
    Stamp,
    entry_hash,
    extend_log,
    parse_log,
    render_log,
    verify_log,
)
from trunkline.sources.keys import CHANGE

NUMBERS = count()
STAMP = Stamp("2026-11-16T00:00:00Z", lambda: str(next(NUMBERS)))
TWO = {slug: TREE["categories"][slug] for slug in ("rust-learning", "linux-hardening")}
FIRST = signed(SIGNER, categories=TWO)


def logged(*trees: dict[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for each in trees:
        entries += extend_log(entries, each, SIGNER, STAMP)
    return entries


@pytest.mark.holds("O1.12")
def test_a_first_signature_writes_everything_down() -> None:
    entries = logged(FIRST)
    assert [entry["action"] for entry in entries] == [
        *("category_added", "source_added", "source_added", "source_added") * 2,
        "registry_signed",
    ]
    assert entries[0]["previous_hash"] == BEGINNING
    assert entries[1]["previous_hash"] == entry_hash(entries[0])
    assert {entry["actor"] for entry in entries} == {SIGNER.pubkey}
    assert len({entry["id"] for entry in entries}) == len(entries)
    assert verify_log(entries, FIRST) == entry_hash(entries[-1])


def test_what_has_not_changed_gives_no_entry() -> None:
    assert extend_log(logged(FIRST), FIRST, SIGNER, STAMP) == []


def change(what: str) -> dict[str, Any]:
    categories = copy.deepcopy(TWO)
    rust = categories["rust-learning"]
    match what:
        case "category_removed":
            del categories["linux-hardening"]
        case "category_added":
            categories["new"] = category("new", "New", ("a", "b", "c"))
        case "category_updated":
            rust["query_patterns"].append("more")
        case "source_updated":
            rust["sources"][0]["why"] = "Better."
        case _:
            rust["sources"][0]["url"] = "https://other.example"
    return signed(SIGNER, categories=categories)


@pytest.mark.holds("O1.12")
@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("category_removed", 1),
        ("category_added", 4),
        ("category_updated", 1),
        ("source_updated", 1),
        ("source_removed", 2),
    ],
)
def test_a_change_is_written_down_as_what_it_is(what: str, count: int) -> None:
    new = change(what)
    entries = logged(FIRST)
    added = extend_log(entries, new, SIGNER, STAMP)
    assert (added[0]["action"], added[-1]["action"]) == (what, "registry_signed")
    assert len(added) == count + 1
    verify_log(entries + added, new)
    with pytest.raises(BadLog, match="not the one that was signed last"):
        verify_log(entries + added, FIRST)


def test_a_new_version_alone_is_signed_too() -> None:
    newer = signed(SIGNER, categories=TWO, version="2.0.0")
    (added,) = extend_log(logged(FIRST), newer, SIGNER, STAMP)
    assert added["data"]["version"] == "2.0.0"


def test_a_log_survives_being_written() -> None:
    entries = logged(FIRST, change("source_updated"))
    assert parse_log(render_log(entries)) == entries


@pytest.mark.holds("O1.12")
@given(st.data())
def test_no_entry_can_be_left_out_moved_or_changed(data: st.DataObject) -> None:
    new = change("source_updated")
    entries = logged(FIRST, new)
    place = data.draw(st.integers(0, len(entries) - 1))
    how = data.draw(st.sampled_from(["left out", "moved", "changed", "ends early"]))
    broken = copy.deepcopy(entries)
    if how == "left out":
        del broken[place]
    elif how == "moved":
        broken.insert(len(broken) - 1 - place, broken.pop(place))
        if broken == entries:
            return
    elif how == "changed":
        key = data.draw(st.sampled_from(["id", "timestamp", "action", "actor", "previous_hash"]))
        broken[place][key] = "1" * 64
    else:
        broken = broken[:place]
    with pytest.raises(BadLog):
        verify_log(broken, new)


@pytest.mark.parametrize(
    ("action", "category", "data"),
    [
        ("category_added", "rust-learning", {}),
        ("category_updated", "nothing", {}),
        ("category_updated", "rust-learning", {}),
        ("category_removed", "nothing", {}),
        ("source_added", "rust-learning", {"url": "https://rust-learning.example/1"}),
        ("source_updated", "rust-learning", {"url": "https://nowhere.example"}),
        ("source_removed", "rust-learning", {"url": "https://nowhere.example"}),
        ("source_removed", "rust-learning", {"url": ["x"]}),
        ("vote_cast", "", {}),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused_though_it_is_signed(
    action: str, category: str, data: dict[str, Any]
) -> None:
    entries = logged(FIRST)
    entry = entries[-1] | {"action": action, "category": category, "data": data}
    entry["previous_hash"] = entry_hash(entries[-1])
    with pytest.raises(BadLog, match="line 10: about something that is not there, or is already"):
        verify_log([*entries, SIGNER.sign(CHANGE, entry)], FIRST)


def test_entries_that_lead_elsewhere_are_refused_though_the_digest_is_right() -> None:
    entries = logged(FIRST)
    removed = entries[-1] | {"action": "category_removed", "category": "linux-hardening"}
    removed["previous_hash"] = entry_hash(entries[-1])
    removed = SIGNER.sign(CHANGE, removed)
    last = SIGNER.sign(CHANGE, entries[-1] | {"previous_hash": entry_hash(removed)})
    with pytest.raises(BadLog, match="do not lead to the topics"):
        verify_log([*entries, removed, last], FIRST)


def test_the_log_of_another_key_is_refused() -> None:
    other = FIRST | {"curator": {"name": "Eve", "pubkey": PUBKEY}}
    with pytest.raises(BadLog, match="line 1: by another key than the curator's"):
        verify_log(logged(FIRST), other)


def test_an_empty_log_says_nothing_about_a_registry() -> None:
    with pytest.raises(BadLog, match="the last entry is missing"):
        verify_log([], FIRST)


ENTRY = '{"id": "1", "timestamp": "", "action": "", "data": %s, "actor": "", "previous_hash": ""}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
        ("[]", "line 1: not an entry"),
        ("{}", "line 1: not an entry"),
        (ENTRY % "{}", "line 1: not an entry"),
        (ENTRY.replace("}", ', "signature": ""}') % "[]", "line 1: not an entry"),
    ],
)
def test_what_is_no_log_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadLog, match=why):
        parse_log(text)
