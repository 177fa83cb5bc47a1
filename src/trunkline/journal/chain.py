"""Chain: what holds records together, so that none can be changed, taken out or moved unseen.

    hash(n) = SHA-256(hash(n - 1), the bytes of record n);  hash(0) = SHA-256(the name of the chain)

Refuses to know what a record says, and where it is kept: it hashes the bytes that are stored.
"""

import hashlib
from collections.abc import Iterable, Iterator

from msgspec import Struct

SIZE = 32
"""How long a hash is, in bytes."""


class Head(Struct, frozen=True):
    """Where a chain ends: the number of its last record, and its hash; 0 before the first."""

    chain: str
    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"


def beginning(chain: str) -> Head:
    """Return the head of a chain that has no records yet."""
    return Head(chain, 0, hashlib.sha256(f"trunkline journal {chain}".encode()).digest())


def follow(before: bytes, body: bytes) -> bytes:
    """Return the hash of a record that comes after the one with the hash `before`."""
    return hashlib.sha256(before + body).digest()


def hashes(before: bytes, bodies: Iterable[bytes]) -> Iterator[bytes]:
    """Return the hashes of records that come one after the other."""
    for body in bodies:
        before = hashlib.sha256(before + body).digest()
        yield before
