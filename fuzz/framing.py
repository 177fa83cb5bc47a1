# Invariant: the payloads do not depend on how the stream is cut, no line is longer than the limit,
# and no more than the limit is buffered, or two short pieces of a line that is too long; never an
# exception.
"""Fuzz the framing: `python -m fuzz.framing -max_total_time=60`."""

import sys

import atheris

with atheris.instrument_imports(include=["trunkline"]):
    from trunkline.jsonrpc import Framer, RemoteProtocolError
    from trunkline.jsonrpc.codec import ID_SCAN_BYTES

LIMIT = 16


def show(found: list[bytes | RemoteProtocolError]) -> list[bytes | str]:
    return [item if isinstance(item, bytes) else str(item) for item in found]


def check(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    cuts = [provider.ConsumeIntInRange(0, 40) for _ in range(4)]
    stream = provider.ConsumeBytes(len(data))
    whole, pieces = Framer(LIMIT), Framer(LIMIT)
    expected = whole.feed(stream) + whole.close()
    found: list[bytes | RemoteProtocolError] = []
    for size in cuts:
        found += pieces.feed(stream[:size])
        stream = stream[size:]
        assert pieces.buffered <= max(LIMIT + 1, 2 * ID_SCAN_BYTES)
    found += pieces.feed(stream) + pieces.close()
    assert show(found) == show(expected)
    for item in found:
        assert isinstance(item, RemoteProtocolError) or (
            0 < len(item) <= LIMIT and b"\n" not in item
        )


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-max_len=256", "-timeout=10"], check)
    atheris.Fuzz()
