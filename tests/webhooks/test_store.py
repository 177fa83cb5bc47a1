"""The file of webhook messages: order, limits, dead messages, files that cannot be used."""

import sqlite3
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from trunkline.webhooks import store as store_module
from trunkline.webhooks.store import (
    NewMessage,
    StoredMessage,
    TargetState,
    WebhookStore,
    WebhookStoreError,
)


@pytest.fixture
def store(tmp_path: Path) -> Generator[WebhookStore]:
    found = WebhookStore(tmp_path / "state" / "webhooks.db")
    found.open()
    yield found
    found.close()


def message(id: str, target: str = "ops", at: float = 1.0) -> NewMessage:
    return NewMessage(target, id, "server.down", b'{"jsonrpc":"2.0"}', at)


def add(store: WebhookStore, *ids: str, target: str = "ops") -> None:
    assert store.add([message(id, target) for id in ids], {target: 100}) == []


def waiting(store: WebhookStore, target: str = "ops") -> list[str]:
    return [each.id for each in store.next_messages(target, 100)]


def test_messages_wait_in_order_for_each_target(store: WebhookStore) -> None:
    add(store, "a", "b")
    add(store, "x", target="other")
    add(store, "c")
    assert (waiting(store), waiting(store, "other")) == (["a", "b", "c"], ["x"])
    first = store.next_messages("ops", 1)
    assert first == [
        StoredMessage(1, "ops", "a", "server.down", b'{"jsonrpc":"2.0"}', 1.0, 0, None, 0.0, None)
    ]
    store.remove([first[0].seq])
    assert waiting(store) == ["b", "c"]


def test_a_message_that_is_added_twice_is_stored_once(store: WebhookStore) -> None:
    add(store, "a")
    add(store, "a", "b")
    assert waiting(store) == ["a", "b"]


def test_messages_without_room_are_returned(store: WebhookStore) -> None:
    room = {"ops": 2, "other": 1}
    added = [message("a"), message("b"), message("c"), message("x", "other"), message("y", "gone")]
    assert [each.id for each in store.add(added, room)] == ["c", "y"]
    assert [each.id for each in store.add([message("d")], room)] == ["d"]
    store.remove([1])
    assert store.add([message("e")], room) == []
    assert waiting(store) == ["b", "e"]


def test_a_failed_attempt_is_noted(store: WebhookStore) -> None:
    add(store, "a")
    store.postpone(1, now=10.0, next_at=11.0, problem="status 500")
    store.postpone(1, now=11.0, next_at=13.0, problem="status 502")
    (found,) = store.next_messages("ops", 1)
    assert (found.attempts, found.first_attempt_at, found.next_at, found.problem) == (
        2,
        10.0,
        13.0,
        "status 502",
    )


def test_a_dead_message_is_sent_again_in_its_place_if_the_operator_asks(
    store: WebhookStore,
) -> None:
    add(store, "a", "b")
    store.postpone(1, now=10.0, next_at=11.0, problem="status 500")
    store.set_dead(1, "ops", "status 500")
    assert waiting(store) == ["b"]
    assert [each.id for each in store.dead_messages("ops")] == ["a"]
    assert store.retry_dead("ops") == 1
    assert store.dead_messages("ops") == []
    first = store.next_messages("ops", 2)[0]
    assert (first.id, first.attempts, first.first_attempt_at, first.next_at) == ("a", 0, None, 0.0)


def test_the_oldest_dead_messages_are_removed(
    store: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_DEAD_MESSAGES", 2)
    add(store, "a", "b", "c")
    add(store, "x", target="other")
    for each in (*store.next_messages("ops", 3), *store.next_messages("other", 1)):
        store.set_dead(each.seq, each.target, "status 400")
    assert [each.id for each in store.dead_messages("ops")] == ["b", "c"]
    assert [each.id for each in store.dead_messages("other")] == ["x"]


def test_nothing_is_sent_to_a_target_that_is_switched_off(store: WebhookStore) -> None:
    add(store, "a")
    store.switch_off("ops", "it answered 410", 5.0)
    assert waiting(store) == []
    add(store, "b")
    assert store.read_states(["ops", "other"]) == [
        TargetState("ops", 2, 0, 1.0, None, "it answered 410"),
        TargetState("other", 0, 0, None, None, None),
    ]
    assert store.retry_dead("ops") == 0
    assert waiting(store) == ["a", "b"]


def test_the_state_shows_why_the_last_attempt_failed(store: WebhookStore) -> None:
    add(store, "a", "b")
    store.set_dead(1, "ops", "status 400")
    store.postpone(2, now=1.0, next_at=2.0, problem="no answer in 10 s")
    assert store.read_states(["ops"])[0][:5] == ("ops", 1, 1, 1.0, "no answer in 10 s")


def test_messages_survive_the_process(store: WebhookStore) -> None:
    add(store, "a")
    store.close()
    store.close()
    again = WebhookStore(store.path)
    again.ensure_open()
    again.ensure_open()
    assert waiting(again) == ["a"]
    again.close()


def test_the_file_is_for_its_owner_only(store: WebhookStore) -> None:
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_a_file_of_another_program_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "webhooks.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(WebhookStoreError, match="this is a file of another program"):
        WebhookStore(path).open()
    path.write_text("no database" * 100)
    with pytest.raises(WebhookStoreError, match="file is not a database"):
        WebhookStore(path).open()


def test_a_file_of_another_version_is_not_used(store: WebhookStore) -> None:
    store.close()
    with sqlite3.connect(store.path) as newer:
        newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(WebhookStoreError, match="expected version 1, got 2; use the Trunkline"):
        store.open()


def test_errors_name_the_file(store: WebhookStore, tmp_path: Path) -> None:
    store.close()
    with pytest.raises(WebhookStoreError, match=r"webhooks\.db: the file is not open"):
        waiting(store)
    with pytest.raises(WebhookStoreError, match="missing"):
        WebhookStore(tmp_path / "missing").open(create=False)
    (tmp_path / "folder").touch()
    with pytest.raises(WebhookStoreError, match="folder"):
        WebhookStore(tmp_path / "folder" / "webhooks.db").open()


def test_a_failed_transaction_leaves_nothing(store: WebhookStore) -> None:
    bad: list[NewMessage] = [message("a"), message("b")._replace(body=None)]  # type: ignore[arg-type]
    with pytest.raises(WebhookStoreError, match="NOT NULL"):
        store.add(bad, {"ops": 10})
    assert waiting(store) == []
