"""The payloads of the benchmarks, the same in every run."""

import json
from typing import Any, NamedTuple

ID = 17
"""The id of every message built here."""

METHOD = "tools/call"
"""The method of every request built here, except the one for the dispatchers."""

KIB = 1024
MIB = 1024 * KIB

EMOJI = "\N{ROCKET}"

_PROSE = (
    "the gateway reads one envelope, leaves the params as they came and hands them on; "
    'nothing in between needs to know what is inside of them, unless somebody said "look"'
)
_WORDS = _PROSE.split()


class Sample(NamedTuple):
    """One size of message, as a request and as the response to it."""

    name: str
    request: bytes
    response: bytes


def samples() -> list[Sample]:
    """Return messages of all sizes, smallest first."""
    return [
        Sample("small", _pack(_request(_small_arguments())), _pack(_response(_small_result()))),
        structured("2 KiB", 2 * KIB),
        structured("64 KiB", 64 * KIB),
        text("64 KiB text", 64 * KIB),
        structured("1 MiB", MIB),
    ]


def memory_samples() -> list[Sample]:
    """Return the messages for the memory benchmark, with and without a few emoji."""
    return [
        structured("1 MiB", MIB),
        structured("1 MiB, emoji", MIB, mark=EMOJI),
        text("1 MiB text", MIB),
        text("1 MiB text, emoji", MIB, mark=EMOJI),
    ]


def structured(name: str, size: int, mark: str = "") -> Sample:
    """Build messages of objects, arrays, numbers and short strings, of about `size` bytes."""
    rows = _rows(size, mark)
    result = {"content": [], "structuredContent": {"rows": rows}, "isError": False}
    return Sample(name, _pack(_request({"rows": rows})), _pack(_response(result)))


def text(name: str, size: int, mark: str = "") -> Sample:
    """Build messages with one long string, of about `size` bytes."""
    body = _prose(size, mark)
    result = {"content": [{"type": "text", "text": body}], "isError": False}
    return Sample(name, _pack(_request({"path": "a.txt", "text": body})), _pack(_response(result)))


def add_request() -> bytes:
    """Return the call for the dispatchers: add(a=2, b=3)."""
    return _pack({"jsonrpc": "2.0", "id": ID, "method": "add", "params": {"a": 2, "b": 3}})


def variants(size: str) -> dict[str, bytes]:
    """Return one message in many notations; `size` is the name of a sample."""
    sample = next(sample for sample in samples() if sample.name == size)
    request = json.loads(sample.request)
    params = request["params"]
    bare = {"jsonrpc": "2.0", "method": METHOD, "params": params}
    backwards = {"method": METHOD, "params": params, "jsonrpc": "2.0", "id": ID}
    failure = {"code": -32000, "message": "no such row", "data": params}
    accented = {**params, "name": f"search {EMOJI}"}
    return {
        "request, compact": _pack(request),
        "request, json.dumps spacing": json.dumps(request).encode(),
        "request, pretty printed": json.dumps(request, indent=2).encode(),
        "request, one unknown member": _pack({**request, "trace": "4bf92f35"}),
        "request, method first, id last": _pack(backwards),
        "request, string id": _pack({**request, "id": "req-17"}),
        "request, non-ASCII text": _pack({**request, "params": accented}),
        "notification": _pack(bare),
        "response": sample.response,
        "error response": _pack({"jsonrpc": "2.0", "id": ID, "error": failure}),
        "batch of 10 requests": _pack([{**request, "id": ID + i} for i in range(10)]),
    }


def _request(arguments: dict[str, Any]) -> dict[str, Any]:
    params = {"name": "search", "arguments": arguments}
    return {"jsonrpc": "2.0", "id": ID, "method": METHOD, "params": params}


def _response(result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ID, "result": result}


def _small_arguments() -> dict[str, Any]:
    filters = {"lang": "en", "year": 2024, "tags": ["a", "b"]}
    return {"query": "quarterly report", "limit": 20, "offset": 0, "filters": filters}


def _small_result() -> dict[str, Any]:
    line = "3 documents match: q1-2024.pdf, q2-2024.pdf and q3-2024.pdf, the latest of them new"
    return {"content": [{"type": "text", "text": line}], "isError": False}


def _rows(size: int, mark: str) -> list[dict[str, Any]]:
    """Make as many rows as fit; every eighth has the mark in its title."""
    envelope = len(_pack(_request({"rows": []})))
    rows: list[dict[str, Any]] = []
    left = size - envelope
    while True:
        i = len(rows)
        row = {
            "id": i,
            "title": f"row {i}{mark if i % 8 == 0 else ''}",
            "score": round(i * 0.37 % 10, 3),
            "active": i % 3 == 0,
            "parent": None if i % 5 == 0 else i // 5,
            "tags": ["alpha", "beta", _WORDS[i % len(_WORDS)]],
            "at": {"x": i % 97, "y": -(i % 89) / 4},
        }
        left -= len(_pack(row)) + 1
        if left < 0:
            return rows
        rows.append(row)


def _prose(size: int, mark: str) -> str:
    """Make lines of words, with the mark at the end of every hundredth line."""
    lines: list[str] = []
    left = size - len(_pack(_request({"path": "a.txt", "text": ""})))
    while True:
        i = len(lines)
        line = " ".join(_WORDS[(i + k) % len(_WORDS)] for k in range(14))
        line += mark if i % 100 == 0 else ""
        left -= len(_pack(line + "\n")) - 2
        if left < 0:
            return "\n".join(lines)
        lines.append(line)


def _pack(value: object) -> bytes:
    """Write compact JSON in UTF-8, as most peers do."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
