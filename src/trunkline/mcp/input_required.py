"""Input requests: a call of 2026-07-28 that needs input, and is sent again with the responses.

    result  {"resultType": "input_required", "inputRequests", "requestState"}  <──>  InputRequired
    params  {…, "inputResponses", "requestState"}                              <──>  RetryParams

It never interprets a state, which belongs to the server and goes back unchanged.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.jsonrpc.raw_json import first_byte
from trunkline.mcp.params import Params, decode_value
from trunkline.mcp.results import malformed_result
from trunkline.mcp.server_requests import (
    ELICIT,
    ServerRequest,
    required_capability,
    to_input_request,
)

# The number of retries of one call. Clients give up after as many.
MAX_INPUT_ROUNDS = 10

# The number of input requests in one result.
MAX_INPUT_REQUESTS = 64

# The error code of a 2025-11-25 server that wants the user to visit a URL first.
URL_ELICITATION_REQUIRED = -32042

_RESPONSES_KEY, _STATE_KEY, _REQUESTS_KEY = "inputResponses", "requestState", "inputRequests"
_COMPLETE_PREFIX = b'{"resultType":"complete"'
_COMPLETE, _NULL = Raw(b'"complete"'), Raw(b"null")
_OBJECT, _TEXT = ord("{"), ord('"')


class InputRequired(NamedTuple):
    """The requests that a server wants answered, and the state that it wants back."""

    input_requests: dict[str, ServerRequest]
    state: Raw | None = None
    """Returned unchanged with the responses; None if the server sent no state."""


class RetryParams(NamedTuple):
    """The responses of a client, and the state that it was given."""

    input_responses: dict[str, Raw]
    state: str | None = None


def read_input_required(result: Raw) -> InputRequired | None:
    """Read an `input_required` result; None if it is complete; else raises MalformedResult."""
    try:
        found = read_members(result)
        kind = decode_value(found.get("resultType", _COMPLETE))
        if kind == "complete":
            return None
        if kind != "input_required":
            raise ValueError("unknown 'resultType'")
        state = _get_non_null(found, _STATE_KEY)
        if state is not None and first_byte(state) != _TEXT:
            raise ValueError(f"expected a string as {_STATE_KEY!r}")
        requests = read_input_requests(_get_non_null(found, _REQUESTS_KEY) or Raw(b"{}"))
        if not requests and state is None:
            raise ValueError(f"expected {_REQUESTS_KEY!r} or {_STATE_KEY!r}")
    except ValueError as error:
        raise malformed_result(str(error)) from None
    return InputRequired(requests, state)


def write_input_required(
    requests: Mapping[str, ServerRequest], state: Raw | str | None = None
) -> Raw:
    """Write an `input_required` result. It needs at least one request, or a state."""
    result: dict[str, object] = {"resultType": "input_required"}
    if requests:
        result[_REQUESTS_KEY] = {
            key: _request_members(request) for key, request in requests.items()
        }
    if state is not None:
        result[_STATE_KEY] = state
    return to_raw(result)


def replace_state(result: Raw, replace: Callable[[Raw], str]) -> Raw:
    """Return a result whose state, if it is an `input_required` one with a state, is replaced.

    A result that cannot be read stays as it is.
    """
    if starts_complete(result) or b'"input_required"' not in bytes(result):
        return result
    try:
        found = read_members(result)
        kind = decode_value(found.get("resultType", _COMPLETE))
    except ValueError:
        return result
    state = _get_non_null(found, _STATE_KEY)
    if state is None or kind != "input_required":
        return result
    return to_raw(found | {_STATE_KEY: to_raw(replace(state))})


def starts_complete(result: Raw) -> bool:
    """Return whether a result begins by saying that it is complete, as nearly all do.

    It spares the parsing of nearly every result: see `bench.hop`.
    """
    return bytes(memoryview(result)[: len(_COMPLETE_PREFIX)]) == _COMPLETE_PREFIX


def read_retry(params: Params) -> RetryParams | None:
    """Read the input responses of a retried call; None for a first call; raises Invalid params."""
    raw, state = params.get(_RESPONSES_KEY) or _NULL, decode_value(params.get(_STATE_KEY) or _NULL)
    if not isinstance(state, str | None):
        raise RpcError.invalid_params(f"expected a string as {_STATE_KEY!r}", {"field": _STATE_KEY})
    if bytes(raw) == b"null":
        return None if state is None else RetryParams({}, state)
    try:
        responses = read_members(raw)
        for key, response in responses.items():
            if first_byte(response) != _OBJECT:
                raise ValueError(f"expected an object as {key!r}")
    except ValueError as error:
        text = f"expected an object of input responses as {_RESPONSES_KEY!r}: {error}"
        raise RpcError.invalid_params(text, {"field": _RESPONSES_KEY}) from None
    return RetryParams(responses, state)


def put_retry(params: Params, responses: Mapping[str, Raw], state: Raw | None) -> None:
    """Set the input responses and the state in `params`, in place of earlier ones."""
    strip_retry(params)
    if responses:
        params.put(_RESPONSES_KEY, responses)
    if state is not None:
        params.put(_STATE_KEY, state)


def strip_retry(params: Params) -> None:
    """Remove the retry members, which only stateless servers know."""
    params.drop(_RESPONSES_KEY)
    params.drop(_STATE_KEY)


def read_url_elicitations(error: RpcError) -> dict[str, ServerRequest] | None:
    """Convert a URL elicitation error of 2025-11-25 to input requests, by elicitation id.

    Returns None for other errors, and for one whose data cannot be read.
    """
    if error.code != URL_ELICITATION_REQUIRED or error.data is UNSET:
        return None
    requests: dict[str, ServerRequest] = {}
    try:
        found = from_raw(read_members(to_raw(error.data))["elicitations"], list[Raw])
        for raw in found[: MAX_INPUT_REQUESTS + 1]:
            request = ServerRequest(ELICIT, raw)
            params = Params(raw)
            if "url" not in required_capability(request)["elicitation"]:
                return None
            params.require_text("url")
            requests[params.require_text("elicitationId")] = to_input_request(request)
    except (KeyError, ValueError, RpcError):
        return None
    is_complete = len(requests) == len(found) <= MAX_INPUT_REQUESTS
    return requests if requests and is_complete else None


def read_input_requests(raw: Raw) -> dict[str, ServerRequest]:
    """Read the input requests of a result; raises ValueError if they are malformed."""
    found = read_members(raw)
    if len(found) > MAX_INPUT_REQUESTS:
        raise ValueError(f"expected at most {MAX_INPUT_REQUESTS} input requests, got {len(found)}")
    return {key: _read_input_request(key, request) for key, request in found.items()}


def _read_input_request(key: str, raw: Raw) -> ServerRequest:
    try:
        given = Params(raw)
        request = ServerRequest(given.require_text("method"), given.get("params") or UNSET)
        required_capability(request)  # raises for an unknown or malformed request
    except RpcError as error:
        raise ValueError(f"{_REQUESTS_KEY}[{key!r}]: {error.message}") from None
    return request


def _request_members(request: ServerRequest) -> dict[str, object]:
    if request.params is UNSET:
        return {"method": request.method}
    return {"method": request.method, "params": request.params}


def _get_non_null(found: dict[str, Raw], key: str) -> Raw | None:
    raw = found.get(key, _NULL)
    return None if bytes(raw) == b"null" else raw
