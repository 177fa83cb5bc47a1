# Invariant: every text survives encoding as a header value; malformed headers give an RpcError or a
# plain answer, never another exception; and a page is accepted only if a second parser, too, takes
# its origin for a loopback address.
"""Fuzz the headers: `python -m fuzz.headers -max_total_time=60`."""

import sys
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

import atheris

from fuzz.inputs import mutated_bytes

with atheris.instrument_imports(include=["trunkline"]):
    from trunkline.endpoints.auth import EndpointSettings, preflight_headers
    from trunkline.http.media_types import accepts, is_json, media_type
    from trunkline.jsonrpc import Raw, RemoteProtocolError, Request, RpcError, decode
    from trunkline.mcp.http_headers import (
        HeaderCheck,
        argument_headers,
        decode_header_value,
        encode_header_value,
        header_params,
    )
    from trunkline.mcp.params import Params

SETTINGS = EndpointSettings()

VALUES = [
    b"application/json, text/event-stream;q=0.5",
    b'text/html;x="a,b";q=0, */*',
    b"application/json; charset=utf-8",
    b"http://localhost:8080",
    b"https://[::1]:8443",
    b"=?base64?w6k=?=",
    b"tools/call",
    b"2026-07-28",
]

REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}'

BODIES = [
    b'{"name":"x","arguments":{"region":"\xc3\xa9","n":7},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}',
]

DEFINITION = Raw(
    b'{"inputSchema":{"type":"object","properties":{'
    b'"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"}}}}'
)


def is_loopback_page(origin: bytes) -> bool:
    """Return whether the standard library takes an origin for a loopback address."""
    host = urlsplit(origin.decode("latin-1")).hostname or ""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def check_value(value: bytes) -> None:
    """Check what reads one header value."""
    accepts(value, "application/json")
    assert not is_json(value) or media_type(value) == "application/json"
    preflight_headers(value)
    SETTINGS.check_access(value, None)
    if not SETTINGS.is_forbidden_origin(value):
        assert is_loopback_page(value), value
    with suppress(ValueError):
        decode_header_value(value)


def check(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    text = provider.ConsumeUnicodeNoSurrogates(40)
    encoded = encode_header_value(text)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert decode_header_value(encoded) == text
    values = [mutated_bytes(provider, VALUES) for _ in range(3)]
    for value in values:
        check_value(value)
    names = (b"mcp-method", b"mcp-name", b"mcp-param-region")
    header_check = HeaderCheck(dict(zip(names, values, strict=True)), frozenset())
    try:
        request = decode(REQUEST % mutated_bytes(provider, BODIES))
    except RemoteProtocolError:
        return
    if isinstance(request, Request):
        check_request(header_check, request)


def check_request(header_check: HeaderCheck, request: Request) -> None:
    """Check what compares the headers of a request with its body."""
    declared = header_params(DEFINITION)
    with suppress(RpcError):
        params = Params(request.params)
        header_check.check_body(request.method, params)
        header_check.check_arguments(declared, params.get("arguments"))
    with suppress(RpcError):
        for _, value in argument_headers(declared, Params(request.params).get("arguments")):
            assert b"\n" not in value
            assert b"\r" not in value


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-max_len=1024", "-len_control=0", "-timeout=10"], check)
    atheris.Fuzz()
