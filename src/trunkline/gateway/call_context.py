"""CallContext: the record of one call on its way through the gateway, and its summary at the end.

    received ──routed──> checked ──sent──> answered ──> finish hooks ──> one CallSummary

The router creates it; sessions, queues, limiters, kill switches, backends and the audit log refer
to it. This module records what other modules decide. Details that few consumers need, such as the
name in a call of an unknown tool, are computed on demand, because most calls succeed and need none
of them.

Invariants:
1. A call has one CallContext, from its arrival to its end.
2. The finish hooks run once, in the order they were added, with the outcome of the call. If a hook
   raises any exception, the later hooks still run.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable
from time import monotonic, time
from typing import NamedTuple, Protocol, TypeAlias, cast

from msgspec import Struct, field

from trunkline.gateway.client import DownstreamClient
from trunkline.jsonrpc import Id, PendingResult, Raw, Request, RpcError, from_raw
from trunkline.mcp.errors import ErrorKind
from trunkline.mcp.features import TOOL
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.methods import CLIENT_REQUESTS, Method
from trunkline.mcp.params import Params, decode_value
from trunkline.mcp.versions import Revision
from trunkline.routing.catalog import CatalogEntry

_sequence = itertools.count(10**15)  # 16 digits: formatting an integer is cheap
_ID_PREFIX = f"{random.getrandbits(64):016x}"

_TRACEPARENT = "traceparent"
_TRACEPARENT_BYTES = _TRACEPARENT.encode()
_IS_ERROR_KEY = b'"isError"'

_ERROR_SCAN_BYTES = 32 * 1024
"""How many bytes at each end of a long result are searched for `isError`."""


COMPLETED_STATUSES = ("success", "tool_error")
"""Statuses of calls that the backend carried out, even if the tool reports failure."""


class TracedCall(Protocol):
    """The trace span of one call."""

    def inject(self, params: Params) -> None:
        """Put the trace context into the params for the backend."""
        ...

    def end(self, summary: "CallSummary") -> None:
        """Record how the call ended; never raises."""
        ...


class ToolSearch(NamedTuple):
    """The results of a tool search, for the audit log."""

    surface: str
    """Identifies the set of tools that the caller sees."""
    found: tuple[str, ...]


class CallTimer(Protocol):
    """Ends calls whose time is up."""

    def restart(self, context: "CallContext") -> None:
        """Give a call its whole timeout again, up to a maximum in total."""
        ...


FinishHook: TypeAlias = "Callable[[CallContext, object, BaseException | None], None]"
"""Runs when a call ends, with the call, its result and its error."""


class CallContext(Struct, eq=False):
    """One call in flight."""

    caller: Caller
    request: Request
    method: Method
    """What the gateway knows of the method that was called."""
    params: Params
    """The params for the backend: the router and the backend that gets the call edit them. The
    client's own are in `request`.
    """
    client: DownstreamClient
    has_no_meta: bool = False
    """True if the params had no `_meta`, as in most calls: no trace context to look for."""
    entry: CatalogEntry | None = None
    wrapper: CatalogEntry | None = None
    """The `call_tool` that the client called, if `entry` is the tool within."""
    backend: str | None = None
    """The backend, if MCP does not define the request or the entry is hidden from the caller. For
    all other calls, `entry` names the backend.
    """
    arguments: Raw | None = None
    progress_token: Id | None = None
    """The client's own progress token; None if it wants no progress. The server gets `sequence`."""
    backend_revision: Revision | None = None
    traceparent: str | None = None
    """Set by the tracer; CallSummary reads the client's own one if this is None."""
    rule: str | None = None
    """The policy rule that decided, if one did."""
    status: str | None = None
    """Overrides the status that would be derived from the error."""
    mismatch: str | None = None
    """How the arguments differ from the tool's schema, whether or not the call is passed on."""
    sent_at: float | None = None
    """When the call was handed to the upstream, on the clock of `started_at`. Set when it ends."""
    answered_at: float | None = None
    answer: PendingResult | None = None
    """The answer to come; cancelling it cancels the call. None before the call is sent or waits."""
    queued_at: float = 0.0
    """When the upstream's queue got the call, on the clock of the event loop."""
    deadline: float = 0.0
    """When the upstream's timeout ends the call, on the same clock."""
    timer: CallTimer | None = None
    """The timer that ends the call at its deadline; None before the upstream has the call."""
    on_finish: tuple[FinishHook, ...] = ()
    """Hooks that run when the call ends, in this order, to release what the call acquired."""
    disabled_error: RpcError | None = None
    """The error that ends the call, once a kill switch disables its target."""
    span: "TracedCall | None" = None
    """The span that records the call, if it is traced."""
    wrapped_tool: str | None = None
    """The tool that a `call_tool` asked for, if the call could not be routed."""
    search: ToolSearch | None = None
    """The tools that the call found, if it is a tool search whose results are recorded."""
    sequence: int = field(default_factory=_sequence.__next__)
    """Which call of this process it is; part of `id`, and the progress token for the server."""
    wall_time: float = field(default_factory=time)
    """When the call arrived, in seconds since 1970."""
    started_at: float = field(default_factory=monotonic)
    """When the call arrived, on the monotonic clock."""
    id_prefix: str = _ID_PREFIX
    """The same for all calls of one process."""

    def __repr__(self) -> str:
        """Name the call without its arguments and its client's headers, which may be secret."""
        return f"CallContext(id={self.id!r}, method={self.request.method!r}, name={self.name!r})"

    @property
    def id(self) -> str:
        """The gateway's id of the call: unique, but not hard to guess."""
        return f"{self.id_prefix}{self.sequence}"

    @property
    def name(self) -> str:
        """The name or URI asked for; for `call_tool`, that of the inner tool."""
        entry = self.entry
        if entry is not None and entry.kind is TOOL:
            return entry.public_name
        return requested_name(self.request) if self.wrapped_tool is None else self.wrapped_tool

    def restart_timeout(self) -> None:
        """Give the call its whole timeout again: its server works on it, or its client answered."""
        if self.timer is not None:
            self.timer.restart(self)

    def finish(self, result: object, error: BaseException | None) -> list[BaseException]:
        """Run the `on_finish` hooks, once; return what they raised."""
        hooks, self.on_finish = self.on_finish, ()
        raised: list[BaseException] = []
        for hook in hooks:
            try:
                hook(self, result, error)
            except BaseException as failure:
                raised.append(failure)
        return raised

    def summarize(self, now: float, result: object, error: BaseException | None) -> "CallSummary":
        """Return the summary of the call, given its result or error."""
        sent, params = self.sent_at, self.request.params
        code, kind = (None, None) if error is None else error_code_and_kind(error)
        failure = error.message if isinstance(error, RpcError) and kind in _UPSTREAM_KINDS else None
        return CallSummary(
            self,
            self.status or status_of(result, error, kind, self.entry),
            kind,
            code,
            now - self.started_at,
            0.0 if sent is None else (self.answered_at or now) - sent,
            len(params) if isinstance(params, Raw) else 0,
            len(result) if isinstance(result, Raw) else 0,
            failure,
        )


class CallSummary(Struct, frozen=True, gc=False):
    """How one call ended. Every call produces exactly one."""

    context: CallContext
    status: str
    """One of events.STATUSES."""
    error_kind: str | None
    """`error.data.type`, if the gateway refused the call."""
    error_code: int | None
    """The JSON-RPC code of the error that the client got."""
    duration: float
    """In seconds, from arrival to answer."""
    upstream_duration: float
    """How much of `duration` the upstream took, in seconds, with the time in its queue."""
    request_bytes: int
    response_bytes: int
    failure: str | None = None
    """The reason why the upstream gave no usable answer; None if it gave one or got no call."""

    @property
    def id(self) -> str:
        """The gateway's id of the call, as in logs, traces and audit records."""
        return self.context.id

    @property
    def wall_time(self) -> float:
        """When the call arrived, in seconds since 1970."""
        return self.context.wall_time

    @property
    def request_id(self) -> Id:
        """The client's id of the call."""
        return self.context.request.id

    @property
    def traceparent(self) -> str | None:
        """The `traceparent` of our span if the call is recorded, else the client's, if any."""
        context = self.context
        return context.traceparent or (
            None if context.has_no_meta else read_traceparent(context.request.params)
        )

    @property
    def principal(self) -> Principal:
        """Who called."""
        return self.context.caller.principal

    @property
    def address(self) -> str:
        """The IP address of the client, "" if it is not known."""
        return self.context.client.address

    @property
    def client(self) -> Raw:
        """The client's `clientInfo`, as received."""
        return self.context.caller.client_info

    @property
    def revision(self) -> Revision:
        """The revision that the client speaks."""
        return self.context.caller.revision

    @property
    def method(self) -> str:
        """The method that was called."""
        return self.context.request.method

    @property
    def name(self) -> str:
        """The name or URI asked for."""
        return self.context.name

    @property
    def wrapper(self) -> str | None:
        """The name of the `call_tool` that the client called, if `name` is the tool within."""
        wrapper = self.context.wrapper
        return None if wrapper is None else wrapper.public_name

    @property
    def backend(self) -> str | None:
        """The backend that owns the entry, also if it is hidden; None if there is no such entry."""
        entry = self.context.entry
        return self.context.backend if entry is None else entry.backend

    @property
    def backend_revision(self) -> Revision | None:
        """The revision that the backend speaks."""
        return self.context.backend_revision

    @property
    def rule(self) -> str | None:
        """The policy rule that decided, if one did."""
        return self.context.rule

    @property
    def arguments(self) -> Raw | None:
        """The arguments as forwarded; redact them before storing them."""
        return self.context.arguments


CallEnd: TypeAlias = CallSummary | tuple[CallContext, Raw, float, float]
"""A summary, or a call that succeeded: its context, result, and when it was sent and answered."""


def summarize_calls(calls: Iterable[CallEnd]) -> tuple[list[CallSummary], list[CallSummary]]:
    """Return the summaries of all calls, and those of failed calls only."""
    summaries: list[CallSummary] = []
    failed: list[CallSummary] = []
    for call in calls:
        if not isinstance(call, tuple):
            summaries.append(call)
            if call.status not in COMPLETED_STATUSES:
                failed.append(call)
            continue
        # CallContext.summarize, inlined for calls that succeeded: that is most of them.
        context, result, sent, now = call
        params = context.request.params
        summaries.append(
            CallSummary(
                context,
                "success" if bytes(result).rfind(_IS_ERROR_KEY) < 0 else result_status(result),
                None,
                None,
                now - context.started_at,
                now - sent,
                len(params) if type(params) is Raw else 0,
                len(result),
            )
        )
    return summaries, failed


_UPSTREAM_KINDS = (
    ErrorKind.UPSTREAM_FAILED,
    ErrorKind.UPSTREAM_TIMEOUT,
    ErrorKind.UPSTREAM_UNAVAILABLE,
)

_REFUSAL_STATUSES = {
    ErrorKind.NOT_ALLOWED: "denied",
    ErrorKind.RATE_LIMITED: "rate_limited",
    ErrorKind.DISABLED: "disabled",
    ErrorKind.UPSTREAM_TIMEOUT: "timeout",
    ErrorKind.UPSTREAM_UNAVAILABLE: "unavailable",
}


def status_of(
    result: object, error: BaseException | None, kind: str | None, entry: CatalogEntry | None
) -> str:
    """Return the status of a call: one of events.STATUSES."""
    if error is None:
        return result_status(result) if isinstance(result, Raw) else "success"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if kind in _REFUSAL_STATUSES:
        return _REFUSAL_STATUSES[ErrorKind(kind)]
    return "unknown" if entry is None and isinstance(error, RpcError) else "error"


def error_code_and_kind(error: BaseException | None) -> tuple[int | None, str | None]:
    """Return the code of an error, and its kind if the gateway itself raised it."""
    if not isinstance(error, RpcError):
        return None, None
    data = error.data
    if not isinstance(data, dict):  # data of an upstream's error is raw JSON
        return error.code, None
    kind = cast("dict[str, object]", data).get("type")
    return error.code, kind if isinstance(kind, str) else None


class _ResultFlags(Struct):
    isError: bool = False  # noqa: N815  its name on the wire


def result_status(result: Raw) -> str:
    """Return which of COMPLETED_STATUSES a result has."""
    return "tool_error" if is_tool_error(result) else "success"


def is_tool_error(result: Raw) -> bool:
    """Return whether a result has `isError: true`; of a long one, search only both ends."""
    # Runs for every call. Most servers put `isError` last or omit it. `rfind` is faster than `find`
    # and than decoding the whole result, because it searches for the rare closing quote first.
    if len(result) <= 2 * _ERROR_SCAN_BYTES:
        scanned = bytes(result)
    else:
        view = memoryview(result)
        scanned = bytes(view[:_ERROR_SCAN_BYTES]) + b" " + bytes(view[-_ERROR_SCAN_BYTES:])
    if scanned.rfind(_IS_ERROR_KEY) < 0:
        return False
    try:
        return from_raw(result, _ResultFlags).isError
    except ValueError:
        return False


def read_traceparent(params: object) -> str | None:
    """Return the `traceparent` in the `_meta` of a call, if it is usable."""
    if not isinstance(params, Raw) or bytes(params).find(_TRACEPARENT_BYTES) < 0:
        return None
    try:
        raw = Params(params).meta.get(_TRACEPARENT)
    except RpcError:
        return None  # bad params are reported where the call is carried out
    value = None if raw is None else decode_value(raw)
    return value if isinstance(value, str) and len(value) <= 64 else None


class _NamedParams(Struct):
    type: object = None
    name: object = None
    uri: object = None


class _CompletionParams(_NamedParams):
    ref: _NamedParams | None = None


def requested_name(request: Request) -> str:
    """Return the name or URI that a request asks for, or an empty string."""
    params, method = request.params, CLIENT_REQUESTS.get(request.method)
    if not isinstance(params, Raw):
        return ""
    target = None if method is None else method.target
    by_uri = target == "uri"
    try:
        if target == "ref":
            whole = from_raw(params, _CompletionParams)
            found = whole.ref or whole  # a stored request may have kept only the reference
            by_uri = found.type != "ref/prompt"
        else:
            found = from_raw(params, _NamedParams)
    except (ValueError, RecursionError):
        return ""
    # Only the member that the method reads may name the target, even if both are present.
    first, second = (found.uri, found.name) if by_uri else (found.name, found.uri)
    name = first if first is not None else second
    return name if isinstance(name, str) else ""
