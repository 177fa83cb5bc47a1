"""A strict, fast JSON-RPC 2.0 engine that knows nothing of MCP; a library of its own.

Read it in this order: errors, raw_json, message, codec, framing, peer (all pure); pending,
transport and connection (which await); rpc_context and dispatcher (for users who only register
functions); schema.
"""

from trunkline.jsonrpc.codec import MAX_BATCH_SIZE, MAX_PAYLOAD_BYTES, decode
from trunkline.jsonrpc.connection import Connection, Handler, SendLimits
from trunkline.jsonrpc.dispatcher import Dispatcher
from trunkline.jsonrpc.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    OVERLOADED,
    PARSE_ERROR,
    ConnectionLost,
    Incident,
    InvalidResult,
    LocalProtocolError,
    MalformedResponse,
    ProtocolError,
    RemoteProtocolError,
    RpcError,
    SharedConnectionLost,
    UnreadableAnswer,
    print_incident,
)
from trunkline.jsonrpc.framing import Framer, frame
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
    IdRemapper,
    Lost,
    Notified,
    Peer,
    RemappedCall,
    Returned,
    Violated,
)
from trunkline.jsonrpc.pending import PendingResult, Superseded, as_pending
from trunkline.jsonrpc.raw_json import UNSET, DuplicateKey, Raw, from_raw, read_members, to_raw
from trunkline.jsonrpc.rpc_context import RpcContext
from trunkline.jsonrpc.schema import message_schema
from trunkline.jsonrpc.transport import Transport, memory_pipe

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "MAX_BATCH_SIZE",
    "MAX_PAYLOAD_BYTES",
    "METHOD_NOT_FOUND",
    "OVERLOADED",
    "PARSE_ERROR",
    "UNSET",
    "Batch",
    "Called",
    "Connection",
    "ConnectionLost",
    "Dispatcher",
    "DuplicateKey",
    "ErrorResponse",
    "Event",
    "Failed",
    "Framer",
    "Handler",
    "Id",
    "IdRemapper",
    "Incident",
    "InvalidResult",
    "LocalProtocolError",
    "Lost",
    "MalformedResponse",
    "Message",
    "Notification",
    "Notified",
    "Peer",
    "PendingResult",
    "ProtocolError",
    "Raw",
    "RemappedCall",
    "RemoteProtocolError",
    "Request",
    "Response",
    "Returned",
    "RpcContext",
    "RpcError",
    "SendLimits",
    "SharedConnectionLost",
    "Superseded",
    "Transport",
    "UnreadableAnswer",
    "Violated",
    "as_pending",
    "decode",
    "frame",
    "from_raw",
    "memory_pipe",
    "message_schema",
    "print_incident",
    "read_members",
    "to_raw",
]
