"""Payloads for tests of peers, and readable forms of what a peer sends."""

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

NOTIFICATION = Notification("tell").encode()
MALFORMED_RESPONSE = b'{"jsonrpc":"2.0","id":%d,"result":1,"error":{"code":1,"message":"m"}}'


class UnencodableText(str):
    """A string that raises while it is encoded."""

    __slots__ = ()

    def __str__(self) -> str:
        raise KeyError("no text today")


def request_payload(id: Id, method: str = "m") -> bytes:
    return Request(id, method).encode()


def batch_payload(*payloads: bytes) -> bytes:
    return b"[" + b",".join(payloads) + b"]"


def sent_messages(peer: Peer) -> list[Any]:
    """Take all queued payloads and decode them."""
    payloads: list[Any] = []
    while (payload := peer.next_payload()) is not None:
        payloads.append(json.loads(payload))
    return payloads


def called(events: list[Event]) -> list[Called]:
    """Check that all events are Called, and return them."""
    found = [event for event in events if isinstance(event, Called)]
    assert len(found) == len(events)
    return found


def violation(events: list[Event]) -> RemoteProtocolError:
    """Check that the only event is Violated, and return its violation."""
    (event,) = events
    assert isinstance(event, Violated)
    return event.violation


def result_message(id: Id, value: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def error_codes(answers: list[Any]) -> list[Any]:
    """Return the id and code of each error response."""
    return [(answer["id"], answer["error"]["code"]) for answer in answers]
