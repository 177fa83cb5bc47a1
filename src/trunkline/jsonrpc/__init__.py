"""A strict, fast JSON-RPC 2.0 engine that knows nothing of MCP; a library of its own.

Read it in this order: errors, raw, message, remains, codec, framing, remap, peer (all pure);
channel, sender and connection (which await); incident, params and dispatch (for those who only want
to register functions); schema. A call on its way is a `Due` (due).
"""

from trunkline.jsonrpc.channel import Channel, pipe
from trunkline.jsonrpc.codec import MAX_BATCH, MAX_PAYLOAD, decode
from trunkline.jsonrpc.connection import Connection, Handler
from trunkline.jsonrpc.dispatch import Dispatcher
from trunkline.jsonrpc.due import Due, Instead, due
from trunkline.jsonrpc.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    OVERLOADED,
    PARSE_ERROR,
    ConnectionLost,
    LineEnded,
    LocalProtocolError,
    MalformedAnswer,
    ProtocolError,
    RemoteProtocolError,
    RpcError,
)
from trunkline.jsonrpc.framing import Framer, frame
from trunkline.jsonrpc.incident import Incident, print_incident
from trunkline.jsonrpc.message import (
    Batch,
    ErrorResponse,
    Id,
    Message,
    Notification,
    Request,
    Response,
)
from trunkline.jsonrpc.peer import (
    Called,
    Event,
    Failed,
    Lost,
    Notified,
    Peer,
    Returned,
    Violated,
)
from trunkline.jsonrpc.raw import UNSET, DuplicateKey, Raw, from_raw, members, to_raw
from trunkline.jsonrpc.remap import IdRemapper, Pending
from trunkline.jsonrpc.schema import message_schema

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "MAX_BATCH",
    "MAX_PAYLOAD",
    "METHOD_NOT_FOUND",
    "OVERLOADED",
    "PARSE_ERROR",
    "UNSET",
    "Batch",
    "Called",
    "Channel",
    "Connection",
    "ConnectionLost",
    "Dispatcher",
    "Due",
    "DuplicateKey",
    "ErrorResponse",
    "Event",
    "Failed",
    "Framer",
    "Handler",
    "Id",
    "IdRemapper",
    "Incident",
    "Instead",
    "LineEnded",
    "LocalProtocolError",
    "Lost",
    "MalformedAnswer",
    "Message",
    "Notification",
    "Notified",
    "Peer",
    "Pending",
    "ProtocolError",
    "Raw",
    "RemoteProtocolError",
    "Request",
    "Response",
    "Returned",
    "RpcError",
    "Violated",
    "decode",
    "due",
    "frame",
    "from_raw",
    "members",
    "message_schema",
    "pipe",
    "print_incident",
    "to_raw",
]
