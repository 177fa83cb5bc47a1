"""Failures: how often somebody at one address may be wrong before they have to wait.

Pure but for its clock. Refuses to know what was tried: guessing a key of 256 bits is hopeless, but
each try costs us a signature, and each that fails a line in somebody's log.

Rules upheld here:
1. Who was wrong `most` times waits; a try is given back every `per / most` seconds.
2. An IPv6 network of 64 bits is one address: that is what one customer gets.
3. What is remembered is bounded: who was wrong longest ago is forgotten first.
"""

import time
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network

MAX_ADDRESSES = 10_000


class Failures:
    """Counts failures by address."""

    def __init__(
        self, most: int, per: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._each = per / most
        self._now = clock
        self._spent: dict[str, float] = {}
        """When everything will have been given back."""

    def __len__(self) -> int:
        return len(self._spent)

    def wait(self, address: str) -> float:
        """Return for how many seconds an address has to wait, 0 if it may try."""
        clear = self._spent.get(network_of(address))
        if clear is None:
            return 0.0
        return max(0.0, clear - self._now() - (self._most - 1) * self._each)

    def count(self, address: str) -> None:
        """Take note of a failure."""
        network, now = network_of(address), self._now()
        clear = max(self._spent.pop(network, now), now) + self._each
        if len(self._spent) >= MAX_ADDRESSES:
            del self._spent[next(iter(self._spent))]
        self._spent[network] = clear


def network_of(address: str) -> str:
    """Return the part of an address that one customer has."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((int(found) >> 64 << 64, 64)))
