"""How much memory the decoding of a large message takes, as a multiple of the message's size."""

import gc
import tracemalloc
from typing import NamedTuple

from bench.contestants import Contestant, Decode
from bench.messages import Sample


class Memory(NamedTuple):
    """Multiples of the payload's size; the payload itself is counted, while somebody holds it."""

    peak: float
    """At the worst moment of decoding."""

    held: float
    """Afterwards, by the message and the payload."""

    kept: float
    """Afterwards, by the message alone, once the caller has let go of the payload."""


def measure(contestants: list[Contestant], samples: list[Sample]) -> dict[str, dict[str, Memory]]:
    """Measure the decoding of every sample's request; by sample, then by contestant."""
    return {
        sample.name: {
            contestant.name: measure_one(contestant.decode_request, sample.request)
            for contestant in contestants
            if contestant.largest is None or len(sample.request) <= contestant.largest
        }
        for sample in samples
    }


def measure_one(decode: Decode, source: bytes) -> Memory:
    """Measure the decoding of one payload."""
    decode(source)  # caches fill now rather than in the measurement
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        payload = bytes(memoryview(source))  # a copy, whose memory is traced
        tracemalloc.reset_peak()
        message = decode(payload)
        held, peak = tracemalloc.get_traced_memory()
        del payload
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        del message
    finally:
        tracemalloc.stop()
    size = len(source)
    return Memory((peak - before) / size, (held - before) / size, (kept - before) / size)
