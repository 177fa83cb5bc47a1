"""A store in PostgreSQL, as far as it can be tried without one; `outside/` has a real one."""

import pytest

from trunkline.journal.postgresql import PostgresStore
from trunkline.journal.store import StoreError

NOBODY = "postgresql://me:hunter2@127.0.0.1:1/x"


def test_a_server_that_is_not_there_is_told_without_a_password() -> None:
    store = PostgresStore(NOBODY, "postgresql://me@127.0.0.1:1/x")
    with pytest.raises(
        StoreError, match=r"^postgresql://me@127\.0\.0\.1:1/x: connection failed"
    ) as why:
        store.open()
    assert "hunter2" not in str(why.value)
    store.close()


def test_what_is_not_open_says_so() -> None:
    with pytest.raises(StoreError, match="it is not open"):
        PostgresStore(NOBODY, "x").end()


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(StoreError, match=r"^shown: "):
        PostgresStore("postgresql://h/x?nonsense=1", "shown").open()
