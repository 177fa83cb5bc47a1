"""Calls to a backend or an upstream, for tests without a router."""

from functools import partial
from typing import Any, Protocol

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.jsonrpc import PendingResult, Raw, Request
from trunkline.mcp.identity import Caller
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.params import Params


def token_of(params: Any) -> int:
    """Return the gateway's progress token, which every call has that a server receives."""
    token = params["_meta"]["progressToken"]
    assert type(token) is int
    return token


def without_token(params: Any) -> Any:
    """Return the params of a call that a server received, without the gateway's progress token."""
    assert token_of(params) >= 10**15
    meta = {key: value for key, value in params["_meta"].items() if key != "progressToken"}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return rest | {"_meta": meta} if meta else rest


class AnswersCalls(Protocol):
    """A backend, an upstream, or a fake of one."""

    def call(self, context: CallContext) -> PendingResult: ...


def call_of(
    client: Any,
    params: Raw,
    id: Any = 1,
    method: str = "tools/call",
    caller: Caller | None = None,
) -> CallContext:
    """Return a call of a client."""
    user: DownstreamClient = client
    request, row = Request(id, method, params), CLIENT_REQUESTS[method]
    return CallContext(caller or user.caller, request, row, Params(params), user)


def start_call(target: AnswersCalls, context: CallContext) -> PendingResult:
    """Start a call, and end its context with its answer, as the pipeline does."""
    context.answer = answer = target.call(context)
    answer.add_callback(partial(end_call, context))
    return answer


def end_call(context: CallContext, answer: PendingResult) -> None:
    """Run the finish hooks of a call, none of which may fail."""
    assert context.finish(answer.result, answer.error) == []
