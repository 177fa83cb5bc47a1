"""What tests say to a peer, and what it says then."""

import json
from typing import Any

from trunkline.jsonrpc import (
    Called,
    Event,
    Id,
    Notification,
    Peer,
    RemoteProtocolError,
    Request,
    Violated,
)

TELL = Notification("tell").encode()
BROKEN = b'{"jsonrpc":"2.0","id":%d,"result":1,"error":{"code":1,"message":"m"}}'


class Unwritable(str):
    """A text whose own code fails while it is written."""

    __slots__ = ()

    def __str__(self) -> str:
        raise KeyError("no text today")


def ask(id: Id, method: str = "m") -> bytes:
    return Request(id, method).encode()


def batch(*payloads: bytes) -> bytes:
    return b"[" + b",".join(payloads) + b"]"


def sent(peer: Peer) -> list[Any]:
    """Take all that waits to be sent."""
    payloads: list[Any] = []
    while (payload := peer.outgoing()) is not None:
        payloads.append(json.loads(payload))
    return payloads


def called(events: list[Event]) -> list[Called]:
    """Check that all events are calls."""
    found = [event for event in events if isinstance(event, Called)]
    assert len(found) == len(events)
    return found


def violation(events: list[Event]) -> RemoteProtocolError:
    """Check that the only event is a violation."""
    (event,) = events
    assert isinstance(event, Violated)
    return event.violation


def result(id: Id, value: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def codes(answers: list[Any]) -> list[Any]:
    """Show errors as id and code."""
    return [(answer["id"], answer["error"]["code"]) for answer in answers]
