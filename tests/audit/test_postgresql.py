"""The PostgreSQL store without a server; `outside/` tests it with a real one."""

import pytest

from trunkline.audit.postgresql import PostgresStore
from trunkline.audit.store import StoreError

UNREACHABLE = "postgresql://me:hunter2@127.0.0.1:1/x"


def test_unreachable_server_is_reported_without_the_password() -> None:
    store = PostgresStore(UNREACHABLE, "postgresql://me@127.0.0.1:1/x")
    with pytest.raises(
        StoreError, match=r"^postgresql://me@127\.0\.0\.1:1/x: connection failed"
    ) as why:
        store.open()
    assert "hunter2" not in str(why.value)
    store.close()


def test_closed_store_raises() -> None:
    with pytest.raises(StoreError, match="the store is not open"):
        PostgresStore(UNREACHABLE, "x").tip()


def test_invalid_address_is_reported() -> None:
    with pytest.raises(StoreError, match=r"^shown: "):
        PostgresStore("postgresql://h/x?nonsense=1", "shown").open()
