# Invariant: any bytes give messages that survive encoding and decoding, or a RemoteProtocolError
# whose error payload is a message; never another exception. The fast and the slow path agree.
"""Fuzz the codec: `python -m fuzz.codec -max_total_time=60`."""

import sys

import atheris

with atheris.instrument_imports(include=["trunkline"]):
    from trunkline.jsonrpc import (
        Batch,
        ErrorResponse,
        Notification,
        RemoteProtocolError,
        Request,
        Response,
        decode,
        read_members,
    )
    from trunkline.jsonrpc.codec import MAX_BATCH_SIZE, decode_slow

SEEDS = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":1.0}}}',
    b'{"jsonrpc": "2.0", "id": "a", "method": "m", "params": [1e400]}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"result":{"content":[]},"jsonrpc":"2.0","id":-0}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x","data":null}}',
    b'[{"jsonrpc":"2.0","id":1,"method":"a"},1,[],{"jsonrpc":"2.0","\\u0069d":1,"id":2}]',
    b'{"jsonrpc":"2.0","id":"\\ud83d\\ude00","method":"\xc3\xa9","params":{"_meta":{"x":1}},"x":1}',
    b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"text":"\\ud83d","x\\udc00":1}}',
]


def outcome(payload: bytes) -> object:
    try:
        return decode(payload)
    except RemoteProtocolError as violation:
        if violation.error_payload is not None:
            assert isinstance(decode(violation.error_payload), ErrorResponse)
        return violation.error


def slow_outcome(payload: bytes) -> object:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return outcome(payload)
    try:
        return decode_slow(payload, MAX_BATCH_SIZE)
    except RemoteProtocolError as violation:
        return violation.error


def check(payload: bytes) -> None:
    fast, slow = outcome(payload), slow_outcome(payload)
    if isinstance(fast, Batch):
        assert isinstance(slow, Batch)
        assert len(fast.entries) == len(slow.entries)
        return
    assert fast == slow, (fast, slow)
    if isinstance(fast, Request | Notification | Response | ErrorResponse):
        assert decode(fast.encode()) == fast
        assert b"\n" not in fast.encode()
    try:
        read_members(payload)
    except ValueError:
        pass


if __name__ == "__main__":
    for seed in SEEDS:
        check(seed)
    atheris.Setup([*sys.argv, "-max_len=512", "-timeout=10"], check)
    atheris.Fuzz()
