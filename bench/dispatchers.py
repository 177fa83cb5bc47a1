"""Libraries that dispatch: bytes of a call to `add(a, b)` in, bytes of its response out."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ajsonrpc.dispatcher
import ajsonrpc.manager
import jsonrpc
import jsonrpcserver
import msgspec
import orjson
import pygls.protocol
import pylsp_jsonrpc.dispatchers
import pylsp_jsonrpc.endpoint
import pylsp_jsonrpc.streams
import tinyrpc.dispatch
import tinyrpc.protocols.jsonrpc
from pygls.server import JsonRPCServer

import trunkline.jsonrpc
from bench.contestants import OURS, plain_converter
from bench.messages import ID


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """The public function of a library that turns a request into a response, both as bytes."""

    name: str
    note: str
    handle: Callable[[bytes], Any]
    is_async: bool = False
    is_library: bool = True
    """False for the hand-written baseline, which is not a JSON-RPC library."""


def dispatchers() -> list[Dispatcher]:
    """Return all contestants, ours first."""
    return [
        _trunkline(),
        _by_hand(),
        _tinyrpc(),
        _json_rpc(),
        _ajsonrpc(),
        _jsonrpcserver(),
        _pylsp_jsonrpc(),
        _pylsp_jsonrpc_methods(),
        _pygls("pygls", pygls.protocol.default_converter, lambda params: params.a + params.b),
        _pygls("pygls, plain dicts", plain_converter, lambda params: add(**params)),
    ]


def add(a: int, b: int) -> int:
    """The method that is called."""
    return a + b


def check_answer(name: str, payload: bytes) -> None:
    """Raise unless the payload is the correct response."""
    if json.loads(payload) != {"jsonrpc": "2.0", "id": ID, "result": 5}:
        raise AssertionError(f"{name} answers wrongly: {payload[:200]!r}")


def _trunkline() -> Dispatcher:
    dispatcher = trunkline.jsonrpc.Dispatcher()
    dispatcher.method("add")(add)
    return Dispatcher(OURS, "await Dispatcher.handle(payload)", dispatcher.handle, is_async=True)


class _Add(msgspec.Struct):
    a: int
    b: int


class _Call(msgspec.Struct):
    jsonrpc: str
    method: str
    id: int | str | None
    params: _Add


def _by_hand() -> Dispatcher:
    decode = msgspec.json.Decoder(_Call).decode
    methods = {"add": lambda params: add(params.a, params.b)}

    def handle(payload: bytes) -> bytes:
        call = decode(payload)
        result = methods[call.method](call.params)
        return orjson.dumps({"jsonrpc": "2.0", "id": call.id, "result": result})

    note = "four lines around a typed msgspec decoder, no error handling: the floor, not a library"
    return Dispatcher("msgspec, by hand", note, handle, is_library=False)


def _tinyrpc() -> Dispatcher:
    protocol = tinyrpc.protocols.jsonrpc.JSONRPCProtocol()
    dispatcher = tinyrpc.dispatch.RPCDispatcher()
    dispatcher.add_method(add, "add")

    def handle(payload: bytes) -> bytes:
        response: Any = dispatcher.dispatch(protocol.parse_request(payload))
        return response.serialize()

    return Dispatcher("tinyrpc", "parse_request, RPCDispatcher.dispatch, serialize", handle)


def _json_rpc() -> Dispatcher:
    dispatcher = jsonrpc.Dispatcher({"add": add})

    def handle(payload: bytes) -> bytes:
        return jsonrpc.JSONRPCResponseManager.handle(payload, dispatcher).json.encode()

    return Dispatcher("json-rpc", "JSONRPCResponseManager.handle", handle)


def _ajsonrpc() -> Dispatcher:
    dispatcher = ajsonrpc.dispatcher.Dispatcher({"add": add})
    manager = ajsonrpc.manager.AsyncJSONRPCResponseManager(dispatcher)

    async def handle(payload: Any) -> bytes:
        return (await manager.get_payload_for_payload(payload)).encode()

    note = "await get_payload_for_payload, which makes a task for every request"
    return Dispatcher("ajsonrpc", note, handle, is_async=True)


def _jsonrpcserver() -> Dispatcher:
    methods: Any = {"add": lambda a, b: jsonrpcserver.Success(add(a, b))}

    def handle(payload: Any) -> bytes:
        return jsonrpcserver.dispatch(payload, methods).encode()

    return Dispatcher("jsonrpcserver", "dispatch, its synchronous one", handle)


def _pylsp_jsonrpc() -> Dispatcher:
    methods = {"add": lambda params: add(**params)}
    note = "Endpoint.consume on a dict of methods; no framing, no validation at all; by ujson"
    return Dispatcher("python-lsp-jsonrpc", note, _consume(methods))


class _Methods(pylsp_jsonrpc.dispatchers.MethodDispatcher):
    def m_add(self, a: int, b: int) -> int:
        return add(a, b)


def _pylsp_jsonrpc_methods() -> Dispatcher:
    note = "the same with its MethodDispatcher, the documented way"
    return Dispatcher("python-lsp-jsonrpc, MethodDispatcher", note, _consume(_Methods()))


def _consume(methods: Any) -> Callable[[bytes], bytes]:
    """Do what its stream reader and writer do, without headers and locks."""
    loads, dumps = pylsp_jsonrpc.streams.json.loads, pylsp_jsonrpc.streams.json.dumps
    sent: deque[bytes] = deque(maxlen=1)

    def send(message: dict[str, Any]) -> None:
        sent.append(dumps(message).encode("utf-8"))

    endpoint = pylsp_jsonrpc.endpoint.Endpoint(methods, send)

    def handle(payload: bytes) -> bytes:
        endpoint.consume(loads(payload.decode("utf-8")))
        return sent.pop()

    return handle


class _Writer:
    """Stores what pygls writes."""

    def __init__(self) -> None:
        self.sent: deque[bytes] = deque(maxlen=1)

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        """Store the data."""


def _pygls(name: str, converter: Any, method: Callable[[Any], int]) -> Dispatcher:
    server = JsonRPCServer(pygls.protocol.JsonRPCProtocol, converter)
    protocol, writer = server.protocol, _Writer()
    protocol.set_writer(writer, include_headers=False)
    protocol.fm.feature("add")(method)
    structure, handle_message = protocol.structure_message, protocol.handle_message

    def handle(payload: bytes) -> bytes:
        handle_message(json.loads(payload, object_hook=structure))
        return writer.sent.pop()

    note = "json.loads(object_hook=structure_message) and handle_message, as its main loop does"
    return Dispatcher(name, note, handle)
