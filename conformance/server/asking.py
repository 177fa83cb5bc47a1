"""Input from the client: by requests in the session protocol, by `input_required` when stateless.

answers = await ask(ctx, params, {"key": Ask(…)}, state)

session     each Ask is a request on the stream of the call, all at once; `ask` waits for answers
stateless   `InputNeeded` ends the call; the client calls again with the answers, and then `ask`
            returns them. The state is signed, and rejected if it was changed.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CreateMessageResult,
    ElicitResult,
    GetPromptRequestParams,
    InputRequest,
    ListRootsResult,
)
from pydantic import BaseModel, TypeAdapter

from conformance.server.changes import is_stateless
from conformance.server.samples import Context, JsonObject, text

Params = CallToolRequestParams | GetPromptRequestParams
State = dict[str, str]

_KEY = secrets.token_bytes(32)
_REQUEST: TypeAdapter[Any] = TypeAdapter(InputRequest)
_RESULTS: dict[str, type[BaseModel]] = {
    "elicitation/create": ElicitResult,
    "sampling/createMessage": CreateMessageResult,
    "roots/list": ListRootsResult,
}


class Ask(NamedTuple):
    """One input request, and the client capability that it needs."""

    capability: str
    method: str
    params: JsonObject


class InputNeeded(Exception):
    """Ends the call with a result that requests input."""

    def __init__(self, asks: Mapping[str, Ask], state: State | None) -> None:
        super().__init__("input required")
        requests = {key: {"method": it.method, "params": it.params} for key, it in asks.items()}
        self.result: JsonObject = {"resultType": "input_required", "inputRequests": requests}
        if state is not None:
            self.result["requestState"] = _seal(state)


def elicitation(message: str, properties: JsonObject, required: list[str] | None = None) -> Ask:
    """Ask the user for the values of a form; all of them are required unless said otherwise."""
    names = list(properties) if required is None else required
    schema: JsonObject = {"type": "object", "properties": properties, "required": names}
    params = {"message": message, "requestedSchema": schema}
    return Ask("elicitation", "elicitation/create", params)


def sampling(prompt: str, max_tokens: int = 100) -> Ask:
    """Ask the client's model."""
    messages = [{"role": "user", "content": text(prompt)}]
    params: JsonObject = {"messages": messages, "maxTokens": max_tokens}
    return Ask("sampling", "sampling/createMessage", params)


ROOTS = Ask("roots", "roots/list", {})


def require(ctx: Context, *names: str) -> None:
    """Reject the call if the client has not declared these capabilities."""
    missing = [name for name in names if not declares(ctx, name)]
    if missing:
        data: JsonObject = {"requiredCapabilities": {name: {} for name in missing}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"client lacks {missing!r}", data)


def declares(ctx: Context, name: str) -> bool:
    """Return whether the client has declared a capability."""
    return getattr(ctx.session.client_capabilities, name, None) is not None


async def ask(
    ctx: Context, params: Params, asks: Mapping[str, Ask], state: State | None = None
) -> dict[str, Any]:
    """Return the client's answers by key, once all have arrived."""
    if not is_stateless(ctx):
        answers = await asyncio.gather(*(_request(ctx, each) for each in asks.values()))
        return dict(zip(asks, answers, strict=True))
    require(ctx, *(each.capability for each in asks.values()))
    given = params.input_responses or {}
    if not all(key in given for key in asks):
        raise InputNeeded(asks, state)
    return {key: _plain(given[key]) for key in asks}


def opened(params: Params) -> State | None:
    """Return the state of the call; reject one that is not ours."""
    if params.request_state is None:
        return None
    body, _, mac = params.request_state.partition(".")
    if not hmac.compare_digest(mac, _mac(body)):
        raise MCPError(INVALID_PARAMS, "requestState is not what was given out")
    return json.loads(base64.urlsafe_b64decode(body))


def _seal(state: State) -> str:
    body = base64.urlsafe_b64encode(json.dumps(state).encode()).decode()
    return f"{body}.{_mac(body)}"


def _mac(body: str) -> str:
    return hmac.new(_KEY, body.encode(), hashlib.sha256).hexdigest()


async def _request(ctx: Context, each: Ask) -> dict[str, Any]:
    request = _REQUEST.validate_python({"method": each.method, "params": each.params})
    where = ServerMessageMetadata(related_request_id=ctx.request_id)
    return _plain(await ctx.session.send_request(request, _RESULTS[each.method], metadata=where))


def _plain(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
