"""Libraries that decode or relay messages, each behind the same functions.

`decode_*` turns bytes into an object with the kind, the id and the method of the message, all
checked. `relay_*` returns the bytes of the same message with the id NEW_ID.
"""

import itertools
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ajsonrpc.core
import jsonrpc.jsonrpc2
import jsonrpcserver.dispatcher
import jsonrpcserver.main
import msgspec
import orjson
import pygls.protocol
import pylsp_jsonrpc.endpoint
import pylsp_jsonrpc.streams
import tinyrpc.protocols.jsonrpc
from mcp_types.jsonrpc import JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter
from pygls.server import JsonRPCServer

import trunkline.jsonrpc
from bench.messages import ID, METHOD

NEW_ID = 900_001
"""The id of relayed messages."""

OURS = "trunkline"
BARE_MSGSPEC = "msgspec, bare envelope"
MCP_TYPES = "mcp-types"
JSONRPCSERVER = "jsonrpcserver"

Decode = Callable[[bytes], Any]
Relay = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A library; a function that it lacks is None, and `note` explains the others."""

    name: str
    note: str
    decode_request: Decode
    decode_response: Decode | None = None
    relay_request: Relay | None = None
    relay_response: Relay | None = None
    largest: int | None = None
    """The largest payload for a library that would take minutes on larger ones."""


def contestants() -> list[Contestant]:
    """Return all contestants, ours first."""
    return [
        _trunkline(),
        _trunkline_reading(),
        _bare_msgspec(),
        _untyped("msgspec, untyped", msgspec.json.decode, msgspec.json.encode),
        _untyped("orjson", orjson.loads, orjson.dumps),
        _untyped("json", json.loads, _dumps),
        _mcp_types(),
        _mcp_types_by_kind(),
        _tinyrpc(),
        _json_rpc(),
        _ajsonrpc(),
        _jsonrpcserver(),
        _pylsp_jsonrpc(),
        _pygls(),
        _pygls_plain(),
    ]


def _trunkline() -> Contestant:
    decode = trunkline.jsonrpc.decode

    def relay(payload: bytes) -> bytes:
        message: Any = decode(payload)
        return message.with_id(NEW_ID).encode()

    note = "ours; params and result stay raw JSON"
    return Contestant(OURS, note, decode, decode, relay, relay)


def _trunkline_reading() -> Contestant:
    decode, read = trunkline.jsonrpc.decode, msgspec.json.decode

    def decode_request(payload: bytes) -> Any:
        message: Any = decode(payload)
        return message, read(message.params)

    def decode_response(payload: bytes) -> Any:
        message: Any = decode(payload)
        return message, read(message.result)

    note = "ours, then params or result read into Python values, as those below always do"
    return Contestant("trunkline, values read", note, decode_request, decode_response)


class _Request(msgspec.Struct):
    jsonrpc: str
    method: str
    id: int | str | None
    params: msgspec.Raw


class _Response(msgspec.Struct):
    jsonrpc: str
    id: int | str | None
    result: msgspec.Raw


def _bare_msgspec() -> Contestant:
    decode_request = msgspec.json.Decoder(_Request).decode
    decode_response = msgspec.json.Decoder(_Response).decode
    encode = msgspec.json.Encoder().encode

    def relay_request(payload: bytes) -> bytes:
        message = decode_request(payload)
        message.id = NEW_ID
        return encode(message)

    def relay_response(payload: bytes) -> bytes:
        message = decode_response(payload)
        message.id = NEW_ID
        return encode(message)

    note = "given the kind of each message, checks no version: the floor, not a JSON-RPC reader"
    return Contestant(
        BARE_MSGSPEC, note, decode_request, decode_response, relay_request, relay_response
    )


def _untyped(name: str, loads: Decode, dumps: Callable[[Any], bytes]) -> Contestant:
    def decode_request(payload: bytes) -> Any:
        message = loads(payload)
        if (
            message["jsonrpc"] != "2.0"
            or type(message["id"]) not in (int, str)
            or type(message["method"]) is not str
        ):
            raise ValueError("not a request")
        return message

    def decode_response(payload: bytes) -> Any:
        message = loads(payload)
        if (
            message["jsonrpc"] != "2.0"
            or type(message["id"]) not in (int, str)
            or "result" not in message
        ):
            raise ValueError("not a response")
        return message

    def relay_request(payload: bytes) -> bytes:
        message = decode_request(payload)
        message["id"] = NEW_ID
        return dumps(message)

    def relay_response(payload: bytes) -> bytes:
        message = decode_response(payload)
        message["id"] = NEW_ID
        return dumps(message)

    note = "three checks by hand; given the kind of each message"
    return Contestant(name, note, decode_request, decode_response, relay_request, relay_response)


def _dumps(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def _mcp_types() -> Contestant:
    decode = jsonrpc_message_adapter.validate_json

    def relay(payload: bytes) -> bytes:
        # As in mcp.server.stdio; assigning the id is the fastest way to change it.
        message: Any = decode(payload)
        message.id = NEW_ID
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()

    note = "jsonrpc_message_adapter.validate_json and model_dump_json, as the MCP SDK uses them"
    return Contestant(MCP_TYPES, note, decode, decode, relay, relay)


def _mcp_types_by_kind() -> Contestant:
    decode_request = JSONRPCRequest.model_validate_json
    decode_response = JSONRPCResponse.model_validate_json

    def relay_request(payload: bytes) -> bytes:
        message = decode_request(payload)
        message.id = NEW_ID
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()

    def relay_response(payload: bytes) -> bytes:
        message = decode_response(payload)
        message.id = NEW_ID
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()

    name = "mcp-types, kind known"
    note = "one model's model_validate_json: only for who knows which kind of message comes"
    return Contestant(
        name,
        note,
        decode_request,
        decode_response,
        relay_request,
        relay_response,
    )


def _tinyrpc() -> Contestant:
    protocol = tinyrpc.protocols.jsonrpc.JSONRPCProtocol(id_generator=itertools.repeat(ID))
    decode_request = protocol.parse_request

    def decode_response(payload: bytes) -> Any:
        protocol.create_request(METHOD)  # without it the response is unexpected
        return protocol.parse_reply(payload)

    def relay_request(payload: bytes) -> bytes:
        message = decode_request(payload)
        message.unique_id = NEW_ID
        return message.serialize()

    def relay_response(payload: bytes) -> bytes:
        message = decode_response(payload)
        message.unique_id = NEW_ID
        return message.serialize()

    note = "responses include the making of a request, since it refuses unexpected ones"
    return Contestant(
        "tinyrpc", note, decode_request, decode_response, relay_request, relay_response
    )


def _json_rpc() -> Contestant:
    decode_request = jsonrpc.jsonrpc2.JSONRPC20Request.from_json

    def relay_request(payload: bytes) -> bytes:
        message = decode_request(payload)
        message._id = NEW_ID
        return message.json.encode()

    note = "JSONRPC20Request.from_json, which checks no version; it has no reader of responses"
    return Contestant("json-rpc", note, decode_request, relay_request=relay_request)


def _ajsonrpc() -> Contestant:
    from_body = ajsonrpc.core.JSONRPC20Request.from_body

    def decode_request(payload: bytes) -> Any:
        return from_body(json.loads(payload))

    def decode_response(payload: bytes) -> Any:
        message = ajsonrpc.core.JSONRPC20Response(result=0)
        message.body = json.loads(payload)
        return message

    def relay_request(payload: bytes) -> bytes:
        message = decode_request(payload)
        message.id = NEW_ID
        return json.dumps(message.body).encode()

    def relay_response(payload: bytes) -> bytes:
        message = decode_response(payload)
        message.id = NEW_ID
        return json.dumps(message.body).encode()

    note = "json.loads and JSONRPC20Request.from_body, as its manager does it"
    return Contestant(
        "ajsonrpc", note, decode_request, decode_response, relay_request, relay_response
    )


def _jsonrpcserver() -> Contestant:
    loads = jsonrpcserver.main.default_deserializer
    validate = jsonrpcserver.main.default_validator
    make = jsonrpcserver.dispatcher.create_request

    def decode_request(payload: bytes) -> Any:
        message = loads(payload)
        validate(message)
        return make(message)

    note = "the parse step of its dispatch and no more: json.loads, jsonschema, create_request"
    return Contestant(JSONRPCSERVER, note, decode_request)


def _pylsp_jsonrpc() -> Contestant:
    loads = pylsp_jsonrpc.streams.json.loads  # ujson, if installed
    sent: deque[dict[str, Any]] = deque(maxlen=1)
    endpoint = pylsp_jsonrpc.endpoint.Endpoint({METHOD: lambda params: params}, sent.append)

    def decode_request(payload: bytes) -> Any:
        endpoint.consume(loads(payload.decode("utf-8")))
        return sent.pop()

    note = (
        "has no parse step of its own: Endpoint.consume to a method that returns params; by ujson"
    )
    return Contestant("python-lsp-jsonrpc", note, decode_request)


def _pygls() -> Contestant:
    server = JsonRPCServer(pygls.protocol.JsonRPCProtocol, pygls.protocol.default_converter)
    structure = server.protocol.structure_message

    def decode(payload: bytes) -> Any:
        return json.loads(payload, object_hook=structure)

    note = "default_converter, which makes a namedtuple class of every object; up to 64 KiB only"
    return Contestant("pygls", note, decode, decode, largest=128 * 1024)


def plain_converter() -> Any:
    """Return a converter for pygls that leaves params and results as dicts."""
    converter = pygls.protocol.default_converter()
    for kind in (
        pygls.protocol.JsonRPCRequestMessage,
        pygls.protocol.JsonRPCResponseMessage,
        pygls.protocol.JsonRPCNotification,
    ):
        converter.register_structure_hook(kind, lambda members, kind: kind(**members))
    return converter


def _pygls_plain() -> Contestant:
    server = JsonRPCServer(pygls.protocol.JsonRPCProtocol, plain_converter)
    structure = server.protocol.structure_message

    def decode(payload: bytes) -> Any:
        return json.loads(payload, object_hook=structure)

    note = "with a converter of our own that leaves params and results as dicts; checks no id"
    return Contestant("pygls, plain dicts", note, decode, decode)


def check(contestant: Contestant, request: bytes, response: bytes) -> None:
    """Raise unless the contestant reads and relays both payloads correctly."""
    _check_read(contestant, contestant.decode_request(request))
    if contestant.decode_response is not None:
        _check_read(contestant, contestant.decode_response(response))
    for relay, payload in (
        (contestant.relay_request, request),
        (contestant.relay_response, response),
    ):
        if relay is not None and json.loads(relay(payload)) != {
            **json.loads(payload),
            "id": NEW_ID,
        }:
            raise AssertionError(f"{contestant.name} relays a message wrongly")


def _check_read(contestant: Contestant, message: Any) -> None:
    """Raise unless the message has the right id and, if it has one, the right method."""
    if isinstance(message, tuple) and not hasattr(message, "id"):
        message = message[0]  # the second item has the decoded values
    if not isinstance(message, dict):
        names = ("id", "method", "unique_id", "_id")
        message = {name: getattr(message, name) for name in names if hasattr(message, name)}
    ids = [message[name] for name in ("id", "unique_id", "_id") if name in message]
    if ids != [ID] or message.get("method", METHOD) != METHOD:
        raise AssertionError(f"{contestant.name} reads a message wrongly: {str(message)[:200]}")
