"""Passage: one call on its way through the gateway, and all that becomes known of it.

    begun ──found──> admitted ──sent──> answered ──> CallEnded, once, whatever its end

Refuses to decide: it takes down what others decided. What only few want to know, such as the name
of what nobody offers, is found out when they ask: every call comes this way, and most end well.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable
from time import monotonic, time
from typing import Protocol, TypeAlias, cast

from msgspec import Struct, field

from trunkline.jsonrpc import Id, Raw, Request, RpcError, from_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params, peek
from trunkline.mcp.offer import TOOL
from trunkline.mcp.principal import Principal
from trunkline.mcp.refusal import Refusal
from trunkline.routing.catalog import Entry

_count = itertools.count(10**15)  # as long as what it follows: to write a number is quick
_RUN = f"{random.getrandbits(64):016x}"

_TRACE = "traceparent"
_TRACE_WRITTEN = _TRACE.encode()
_IS_ERROR = b'"isError"'

_WINDOW = 32 * 1024
"""How far from either end of a long result is looked whether the tool says that it failed."""


CARRIED_OUT = ("success", "tool_error")
"""The ends of calls that a backend has carried out, whatever it says of that itself."""


class Span(Protocol):
    """What a trace will show of a call."""

    def carry(self, params: Params) -> None:
        """Have the backend know for which span it works."""
        ...

    def end(self, ended: "CallEnded") -> None:
        """Take down how the call ended; never raises."""
        ...


class Passage(Struct, eq=False):
    """One call on its way."""

    caller: Caller
    request: Request
    bare: bool = False
    """Whether it came without a `_meta`, as most do: nobody need look for a trace there."""
    entry: Entry | None = None
    arguments: Raw | None = None
    revision: str | None = None
    """The revision that the backend speaks."""
    trace: str | None = None
    """The `traceparent` that it goes by, where somebody has found out or given it one."""
    rule: str | None = None
    """The rule that decided, if one did."""
    status: str | None = None
    """How it ended, where whoever refused it knows better than its error says."""
    sent: float | None = None
    """When it was handed to the backend, on the clock of `began`; noted when it has answered."""
    answered: float | None = None
    leaving: tuple[Callable[[], None], ...] = ()
    """What is to be done when it has ended: handed back, counted out."""
    stopped: RpcError | None = None
    """Why it must not go on, if it was stopped before it was under way."""
    span: "Span | None" = None
    """What a trace will show of it, if it is part of one that is recorded."""
    asked: str | None = None
    """The tool that was asked for by way of `call_tool`, of a call that came to nothing."""
    number: int = field(default_factory=_count.__next__)
    """Which call it is; `id` is its name."""
    at: float = field(default_factory=time)
    """When it came, in seconds since 1970."""
    began: float = field(default_factory=monotonic)
    """The same on a clock that nobody sets."""
    run: str = _RUN
    """What the names of all calls of one run begin with."""

    @property
    def id(self) -> str:
        """The gateway's own name for the call: not like any other, but not hard to guess."""
        return f"{self.run}{self.number}"

    @property
    def name(self) -> str:
        """What is asked for: a tool, also one called by way of `call_tool`, a prompt, or a URI."""
        entry = self.entry
        if entry is not None and entry.kind is TOOL:
            return entry.public
        return named_in(self.request) if self.asked is None else self.asked

    def leave(self) -> None:
        """Hand back what was taken for it."""
        leaving, self.leaving = self.leaving, ()
        for step in leaving:
            step()

    def ended(self, now: float, result: object, error: BaseException | None) -> "CallEnded":
        """Return what is to be known of it in the end."""
        sent, asked = self.sent, self.request.params
        code, kind = (None, None) if error is None else code_and_kind(error)
        return CallEnded(
            self,
            self.status or status_of(result, error, kind, self.entry),
            kind,
            code,
            now - self.began,
            0.0 if sent is None else (self.answered or now) - sent,
            len(asked) if isinstance(asked, Raw) else 0,
            len(result) if isinstance(result, Raw) else 0,
        )


class CallEnded(Struct, frozen=True, gc=False):
    """One call, whatever its end: there is exactly one of these for every call."""

    passage: Passage
    """The call itself, on which nobody works any more."""
    status: str
    """How it ended: one of STATUSES."""
    kind: str | None
    """The kind of the refusal, as in `error.data.type`."""
    code: int | None
    """The code of the error that was answered."""
    total: float
    """How long it took in all, in seconds."""
    upstream: float
    """How much of that was the backend's."""
    bytes_in: int
    bytes_out: int

    @property
    def id(self) -> str:
        """The gateway's own name for the call: what a client's error, a log and a trace name."""
        return self.passage.id

    @property
    def at(self) -> float:
        """When it came, in seconds since 1970."""
        return self.passage.at

    @property
    def request_id(self) -> Id:
        """The client's name for it."""
        return self.passage.request.id

    @property
    def trace(self) -> str | None:
        """The `traceparent` that came with it, if one did; our own span's if that is recorded."""
        passage = self.passage
        return passage.trace or (None if passage.bare else trace_of(passage.request.params))

    @property
    def principal(self) -> Principal:
        """Who called."""
        return self.passage.caller.principal

    @property
    def client(self) -> Raw:
        """What the client calls itself, as it said it."""
        return self.passage.caller.client

    @property
    def revision(self) -> str:
        """The revision that the client speaks."""
        return self.passage.caller.version

    @property
    def method(self) -> str:
        """The method that was called."""
        return self.passage.request.method

    @property
    def name(self) -> str:
        """What was asked for."""
        return self.passage.name

    @property
    def backend(self) -> str | None:
        """Who offers it; None for what does not exist, or not for this caller."""
        entry = self.passage.entry
        return None if entry is None else entry.backend

    @property
    def backend_revision(self) -> str | None:
        """The revision that the backend speaks."""
        return self.passage.revision

    @property
    def rule(self) -> str | None:
        """The rule that decided, if one did."""
        return self.passage.rule

    @property
    def arguments(self) -> Raw | None:
        """What was asked, as it was forwarded; whoever keeps it redacts it first."""
        return self.passage.arguments


Ended: TypeAlias = CallEnded | tuple[Passage, Raw, float, float]
"""A call that has ended, or one that went well: with what result, when it was sent, and when."""


def ends_of(calls: Iterable[Ended]) -> tuple[list[CallEnded], list[CallEnded]]:
    """Return how calls ended, if need be by finding it out now, and those that failed alone."""
    found: list[CallEnded] = []
    failed: list[CallEnded] = []
    for call in calls:
        if not isinstance(call, tuple):
            found.append(call)
            if call.status not in CARRIED_OUT:
                failed.append(call)
            continue
        # As `ended` does, with as few steps as can be: most calls end well.
        passage, result, sent, now = call
        asked = passage.request.params
        found.append(
            CallEnded(
                passage,
                "success" if bytes(result).rfind(_IS_ERROR) < 0 else outcome_of(result),
                None,
                None,
                now - passage.began,
                now - sent,
                len(asked) if type(asked) is Raw else 0,
                len(result),
            )
        )
    return found, failed


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
        return outcome_of(result) if isinstance(result, Raw) else "success"
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


def outcome_of(result: Raw) -> str:
    """Return which of CARRIED_OUT a result tells of."""
    return "tool_error" if says_it_failed(result) else "success"


def says_it_failed(result: Raw) -> bool:
    """Tell whether a tool says itself that it failed; a long result is looked at near its ends."""
    # Every call ends here. Most servers say it last or not at all, and `rfind` looks for the
    # quotation mark first, which is rare: that is quicker than `find`, and than to read it all.
    if len(result) <= 2 * _WINDOW:
        looked_at = bytes(result)
    else:
        view = memoryview(result)
        looked_at = bytes(view[:_WINDOW]) + b" " + bytes(view[-_WINDOW:])
    if looked_at.rfind(_IS_ERROR) < 0:
        return False
    try:
        return from_raw(result, _Outcome).isError
    except ValueError:
        return False


def trace_of(params: object) -> str | None:
    """Return the `traceparent` that came with a call, to go by its params."""
    if not isinstance(params, Raw) or bytes(params).find(_TRACE_WRITTEN) < 0:
        return None
    try:
        raw = Params(params).meta.get(_TRACE)
    except RpcError:
        return None  # whoever carries out the call says what is wrong with it
    value = None if raw is None else peek(raw)
    return value if isinstance(value, str) and len(value) <= 64 else None


class _Named(Struct):
    type: object = None
    name: object = None
    uri: object = None


class _Completion(_Named):
    ref: _Named | None = None


def named_in(request: Request) -> str:
    """Return what a call asks for, as far as it names anything: what a completion is for, too."""
    params, by_uri = request.params, request.method.startswith("resources/")
    if not isinstance(params, Raw):
        return ""
    try:
        if request.method == "completion/complete":
            whole = from_raw(params, _Completion)
            found = whole.ref or whole  # which says it itself where nothing else was kept of it
            by_uri = found.type != "ref/prompt"
        else:
            found = from_raw(params, _Named)
    except (ValueError, RecursionError):
        return ""
    # A member that nobody reads shall not stand for the one that counts.
    first, second = (found.uri, found.name) if by_uri else (found.name, found.uri)
    name = first if first is not None else second
    return name if isinstance(name, str) else ""
