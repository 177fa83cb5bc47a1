# Invariant: however a stream of events is cut, the same events come out, none is longer than the
# limit, and no more than the limit is buffered; never an exception. Written events are read back.
"""Fuzz server-sent events: `python -m fuzz.sse -max_total_time=60`."""

import sys

import atheris

with atheris.instrument_imports(include=["trunkline"]):
    from trunkline.http.sse import SseEvent, SseParser, encode_event
    from trunkline.jsonrpc import RemoteProtocolError

LIMIT = 24


def show(found: list[SseEvent | RemoteProtocolError]) -> list[SseEvent | str]:
    return [item if isinstance(item, SseEvent) else str(item) for item in found]


def check(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    cuts = [provider.ConsumeIntInRange(0, 40) for _ in range(4)]
    stream = provider.ConsumeBytes(len(data))
    written = encode_event(stream, id=b"7", retry=1)
    plain = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert SseParser(len(written)).feed(written) == [SseEvent(plain, "message", "7", 1)]
    whole, pieces = SseParser(LIMIT), SseParser(LIMIT)
    expected = whole.feed(stream)
    found: list[SseEvent | RemoteProtocolError] = []
    for size in cuts:
        found += pieces.feed(stream[:size])
        stream = stream[size:]
        assert pieces.buffered_bytes <= LIMIT
    found += pieces.feed(stream)
    assert show(found) == show(expected)
    assert (pieces.last_event_id, pieces.retry) == (whole.last_event_id, whole.retry)
    for item in found:
        assert isinstance(item, RemoteProtocolError) or len(item.data) <= LIMIT


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-max_len=256", "-timeout=10"], check)
    atheris.Fuzz()
