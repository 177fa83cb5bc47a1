# Invariant: the requests and rejections do not depend on how the bytes are cut, no body is longer
# than the limit, each request names one host, and a cached head gives the request that was parsed;
# never an exception.
"""Fuzz the HTTP reader: `python -m fuzz.http_reader -max_total_time=60`."""

import sys

import atheris

from fuzz.inputs import mutated_bytes

with atheris.instrument_imports(include=["trunkline"]):
    from trunkline.http.message import HttpLimits, ParsedRequest, RequestReader
    from trunkline.http.states import ReaderPhase

LIMITS = HttpLimits(max_target=64, max_headers=8, max_body=40)

SEEDS = [
    b'POST /mcp HTTP/1.1\r\nhost: a\r\naccept: */*\r\ncontent-length: 9\r\n\r\n{"a":"b"}',
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET http://a/sse?x=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x01a",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\nDELETE /mcp HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"GET / HTTP/1.0\r\n\r\n",
]


def outcome(reader: RequestReader) -> list[object]:
    """Return the requests, and the status of a rejection."""
    return [
        (one.request, one.flags) if isinstance(one, ParsedRequest) else one.status
        for one in reader.parsed
    ]


def check_request(parsed: ParsedRequest) -> None:
    request = parsed.request
    assert len(request.body) <= LIMITS.max_body
    assert request.head.path.startswith(("/", "*"))
    assert b"host" in request.head.headers or not parsed.flags.is_http11
    assert b"host" not in request.head.repeated


def check(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    cuts = [provider.ConsumeIntInRange(0, 80) for _ in range(4)]
    check_stream(mutated_bytes(provider, SEEDS), cuts)


def check_stream(stream: bytes, cuts: list[int]) -> None:
    whole, pieces = RequestReader("address", LIMITS), RequestReader("address", LIMITS)
    whole.feed(stream)
    for one in whole.parsed:
        if isinstance(one, ParsedRequest):
            check_request(one)
    cached = whole.head_cache.find(stream)
    if cached is not None and whole.phase is ReaderPhase.IDLE:
        (parsed,) = whole.parsed
        assert isinstance(parsed, ParsedRequest)
        assert cached == (parsed.request.head, parsed.request.body)
    rest = stream
    for size in cuts:
        pieces.feed(rest[:size])
        rest = rest[size:]
    pieces.feed(rest)
    assert outcome(pieces) == outcome(whole), (outcome(pieces), outcome(whole))


if __name__ == "__main__":
    for seed in SEEDS:
        check_stream(seed, [1, 20, 7])
    atheris.Setup([*sys.argv, "-max_len=512", "-len_control=0", "-timeout=10"], check)
    atheris.Fuzz()
