"""Passage: one call on its way through the gateway, and all that becomes known of it.

    begun ──found──> admitted ──sent──> answered ──> CallEnded, once, whatever its end

Refuses to decide: it takes down what others decided.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from msgspec import Struct

from trunkline.gateway.events import CallEnded
from trunkline.jsonrpc import Due, Raw, Request, RpcError, from_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params, peek
from trunkline.mcp.offer import Kind
from trunkline.mcp.refusal import Refusal
from trunkline.routing.catalog import Entry

_TRACE = "traceparent"
_IS_ERROR = b"isError"

_WINDOW = 1024
"""How far from either end of a long result is looked whether the tool says that it failed."""


class Span(Protocol):
    """What a trace will show of a call."""

    def carry(self, params: Params) -> None:
        """Have the backend know for which span it works."""
        ...

    def end(self, passage: "Passage", ended: CallEnded) -> None:
        """Take down how the call ended; never raises."""
        ...


class Passage(Struct, eq=False):
    """One call on its way."""

    id: str
    caller: Caller
    request: Request
    name: str
    at: float
    began: float
    entry: Entry | None = None
    revision: str | None = None
    """The revision that the backend speaks."""
    trace: str | None = None
    rule: str | None = None
    """The rule that decided, if one did."""
    status: str | None = None
    """How it ended, where whoever refused it knows better than its error says."""
    arguments: Raw | None = None
    sent: float | None = None
    """When it was handed to the backend, on the clock of `began`."""
    answered: float | None = None
    leaving: list[Callable[[], None]] = []
    """What is to be done when it has ended: handed back, counted out."""
    due: Due | None = None
    """What is waited for, once it is under way; to cancel it is to stop the call."""
    stopped: RpcError | None = None
    """Why it must not go on, if it was stopped before it was under way."""
    span: "Span | None" = None
    """What a trace will show of it, if it is part of one that is recorded."""

    def leave(self) -> None:
        """Hand back what was taken for it."""
        leaving, self.leaving = self.leaving, []
        for step in leaving:
            step()

    @property
    def asked(self) -> str:
        """What is asked for: of a call by way of `call_tool`, the tool that it is really about."""
        entry = self.entry
        return entry.public if entry is not None and entry.kind is Kind.TOOL else self.name

    def stop(self, why: RpcError) -> None:
        """Let nobody work on it any more; it is answered with `why`."""
        self.stopped = why
        if self.due is not None:
            self.due.cancel(why)

    def ended(self, now: float, result: object, error: BaseException | None) -> CallEnded:
        """Return what is to be known of it in the end."""
        upstream = 0.0 if self.sent is None else (self.answered or now) - self.sent
        code, kind = code_and_kind(error)
        return CallEnded(
            id=self.id,
            at=self.at,
            request_id=self.request.id,
            trace=self.trace,
            principal=self.caller.principal,
            client=self.caller.client,
            revision=self.caller.version,
            method=self.request.method,
            name=self.asked,
            backend=None if self.entry is None else self.entry.backend,
            backend_revision=self.revision,
            rule=self.rule,
            status=self.status or status_of(result, error, kind, self.entry),
            kind=kind,
            code=code,
            total=now - self.began,
            upstream=upstream,
            bytes_in=size_of(self.request.params),
            bytes_out=size_of(result),
            arguments=self.arguments,
        )


_STATUS = {
    Refusal.NOT_ALLOWED: "denied",
    Refusal.RATE_LIMITED: "rate_limited",
    Refusal.DISABLED: "disabled",
    Refusal.UPSTREAM_TIMEOUT: "timeout",
    Refusal.UPSTREAM_UNAVAILABLE: "unavailable",
}


def status_of(
    result: object, error: BaseException | None, kind: str | None, entry: Entry | None
) -> str:
    """Return how a call ended: one of STATUSES."""
    if error is None:
        return "tool_error" if isinstance(result, Raw) and says_it_failed(result) else "success"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if kind in _STATUS:
        return _STATUS[Refusal(kind)]
    return "unknown" if entry is None and isinstance(error, RpcError) else "error"


def code_and_kind(error: BaseException | None) -> tuple[int | None, str | None]:
    """Return the code that an error is answered with, and its kind if it is a refusal of ours."""
    if not isinstance(error, RpcError):
        return None, None
    data = error.data
    if not isinstance(data, dict):  # another's is raw, whatever it holds
        return error.code, None
    kind = cast("dict[str, object]", data).get("type")
    return error.code, kind if isinstance(kind, str) else None


class _Outcome(Struct):
    isError: bool = False  # noqa: N815  its name on the wire


def says_it_failed(result: Raw) -> bool:
    """Tell whether a tool says itself that it failed; a long result is looked at near its ends."""
    # Without a loop of our own: every call ends here.
    if len(result) <= 2 * _WINDOW:
        if _IS_ERROR not in bytes(result):
            return False
    else:
        view = memoryview(result)
        if _IS_ERROR not in bytes(view[:_WINDOW]) and _IS_ERROR not in bytes(view[-_WINDOW:]):
            return False
    try:
        return from_raw(result, _Outcome).isError
    except ValueError:
        return False


def size_of(value: object) -> int:
    """Return how many bytes something has that came, or goes, as it is."""
    return len(value) if isinstance(value, Raw) else 0


def trace_of(params: Params) -> str | None:
    """Return the `traceparent` that came with a call."""
    if params.get("_meta") is None:
        return None
    try:
        raw = params.meta.get(_TRACE)
    except RpcError:
        return None  # whoever carries out the call says what is wrong with it
    value = None if raw is None else peek(raw)
    return value if isinstance(value, str) and len(value) <= 64 else None
