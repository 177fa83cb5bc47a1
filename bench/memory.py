"""The memory that decoding a large message takes, as a multiple of its size."""

import gc
import tracemalloc
from typing import NamedTuple

from bench.contestants import Contestant, Decode
from bench.messages import Sample


class Memory(NamedTuple):
    """Multiples of the payload's size; the payload itself counts as long as it is referenced."""

    peak: float
    """The peak during decoding."""

    held: float
    """After decoding, with the message and the payload."""

    kept: float
    """After decoding, with the message alone."""


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
    decode(source)  # fills caches before the measurement
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        payload = bytes(memoryview(source))  # a copy, so that its memory is traced
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
