# Invariant: any bytes give messages that survive the wire, or a RemoteProtocolError whose answer is
# itself a message; never another exception. And the codec's two looks never disagree.
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
        members,
    )
    from trunkline.jsonrpc.codec import MAX_BATCH, look_closely

SEEDS = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":1.0}}}',
    b'{"jsonrpc": "2.0", "id": "a", "method": "m", "params": [1e400]}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"result":{"content":[]},"jsonrpc":"2.0","id":-0}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x","data":null}}',
    b'[{"jsonrpc":"2.0","id":1,"method":"a"},1,[],{"jsonrpc":"2.0","\\u0069d":1,"id":2}]',
    b'{"jsonrpc":"2.0","id":"\\ud83d\\ude00","method":"\xc3\xa9","params":{"_meta":{"x":1}},"x":1}',
]


def look(payload: bytes) -> object:
    try:
        return decode(payload)
    except RemoteProtocolError as violation:
        if violation.answer is not None:
            assert isinstance(decode(violation.answer), ErrorResponse)
        return violation.error


def look_again(payload: bytes) -> object:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return look(payload)
    try:
        return look_closely(payload, MAX_BATCH)
    except RemoteProtocolError as violation:
        return violation.error


def check(payload: bytes) -> None:
    first, second = look(payload), look_again(payload)
    if isinstance(first, Batch):
        assert isinstance(second, Batch)
        assert len(first.entries) == len(second.entries)
        return
    assert first == second, (first, second)
    if isinstance(first, Request | Notification | Response | ErrorResponse):
        assert decode(first.encode()) == first
        assert b"\n" not in first.encode()
    try:
        members(payload)
    except ValueError:
        pass


if __name__ == "__main__":
    for seed in SEEDS:
        check(seed)
    atheris.Setup([*sys.argv, "-max_len=512", "-timeout=10"], check)
    atheris.Fuzz()
