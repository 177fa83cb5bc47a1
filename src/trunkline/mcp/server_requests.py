"""Server requests: what a server asks of a client during a call, in the form of either era.

    a server's request ──> to_input_request, to_session_request ──> in the client's revision
    the client's response ──> to_input_response, to_session_response ──> in the server's revision

Nothing is lost silently: what a revision cannot express is an error that says so.

Rules upheld here:
1. Only clients that declared a capability get its requests, in a form that their revision has.
2. What is equal in both eras keeps its bytes.
3. A server never gets a malformed response.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.jsonrpc.raw_json import UnsetType, first_byte
from trunkline.mcp.cache_hints import STATELESS_RESULT_MEMBERS
from trunkline.mcp.capabilities import read_client_features
from trunkline.mcp.errors import MISSING_CAPABILITY
from trunkline.mcp.params import Params, decode_value
from trunkline.mcp.versions import Revision

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
LIST_ROOTS = "roots/list"

# The error code of a session-protocol client whose user rejects a sampling request.
USER_REJECTED = -1

_ACTIONS = ("accept", "decline", "cancel")
_OBJECT, _ARRAY, _TEXT = ord("{"), ord("["), ord('"')
_TYPE_NAMES = {_OBJECT: "an object", _ARRAY: "an array", _TEXT: "a string"}
_NULL, _EMPTY_OBJECT = Raw(b"null"), Raw(b"{}")

# The content blocks of a sampling with tools.
_TOOL_BLOCKS = ("tool_use", "tool_result")


class ServerRequest(NamedTuple):
    """A request from a server to a client."""

    method: str
    params: Raw | UnsetType = UNSET


def required_capability(request: ServerRequest) -> dict[str, Any]:
    """Return the capability that a client needs for a request; raises RpcError."""
    params = Params(request.params)
    if request.method == LIST_ROOTS:
        return {"roots": {}}
    if request.method == SAMPLE:
        return {"sampling": {"tools": {}} if _uses_tools(params) else {}}
    if request.method == ELICIT:
        return {"elicitation": {_elicitation_mode(params): {}}}
    raise RpcError.method_not_found(request.method)


def is_declared(request: ServerRequest, capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client with these capabilities can answer a request."""
    return is_supported(request, read_client_features(capabilities))


def is_supported(request: ServerRequest, client_features: frozenset[str]) -> bool:
    """Tell whether a client with these features can answer a request."""
    return read_client_features(required_capability(request)) <= client_features


def missing_capability_error(request: ServerRequest) -> RpcError:
    """Return the error for a stateless client that cannot answer a request its call depends on."""
    data = {"requiredCapabilities": required_capability(request)}
    return RpcError(MISSING_CAPABILITY, "Missing required client capability", data)


def undeclared_capability_error(
    request: ServerRequest, capabilities: Mapping[str, Any]
) -> RpcError:
    """Return the error for a session-protocol server whose request the client cannot answer."""
    capability = next(iter(required_capability(request)))
    if not any(name.startswith(capability) for name in read_client_features(capabilities)):
        return RpcError.method_not_found(request.method)
    return RpcError.invalid_params(f"the client did not declare this kind of {capability}")


def unanswered_response(request: ServerRequest) -> Raw | RpcError:
    """Return the response for a session-protocol server when the client does not answer."""
    if request.method == ELICIT:
        return Raw(b'{"action":"cancel"}')
    if request.method == SAMPLE:
        return RpcError(USER_REJECTED, "User rejected sampling request")
    return RpcError.internal_error("the client did not answer")


# Requests, towards the client


def to_input_request(request: ServerRequest) -> ServerRequest:
    """Convert a session-protocol request to an input request of 2026-07-28."""
    if request.params is UNSET:
        return request
    params = Params(request.params)
    for key in ("_meta", "task", "elicitationId"):
        params.drop(key)
    if request.method == ELICIT and params.get("mode") is None:
        params.put("mode", "form")
    return ServerRequest(request.method, params.encode())


def to_session_request(
    request: ServerRequest, revision: Revision, elicitation_id: str
) -> ServerRequest:
    """Convert a request for a client of `revision`; raises RpcError if that is impossible.

    `elicitation_id` is used where that revision requires an id and the request has none.
    """
    if request.method == LIST_ROOTS:
        return request
    params = Params(request.params)
    if request.method == SAMPLE:
        if not revision.has_sampling_tools:
            _downgrade_sampling(params, revision)
    elif not revision.has_elicitation:
        raise _not_supported("an elicitation", revision)
    elif _elicitation_mode(params) == "url":
        if not revision.has_elicitation_modes:
            raise _not_supported("an elicitation of mode 'url'", revision)
        if params.get("elicitationId") is None:
            params.put("elicitationId", elicitation_id)
    else:
        if not revision.has_elicitation_modes:
            params.drop("mode")
        if not revision.has_extended_forms:
            _downgrade_form(params, revision)
    return ServerRequest(request.method, params.encode())


def _downgrade_form(params: Params, revision: Revision) -> None:
    """Remove from a form what 2025-11-25 added."""
    schema = params.get("requestedSchema")
    if schema is None:
        return
    found = _members(schema, "requestedSchema")
    fields = _members(found.get("properties", _EMPTY_OBJECT), "properties")
    downgraded = {name: _downgrade_field(name, field, revision) for name, field in fields.items()}
    if downgraded != fields:
        params.put("requestedSchema", found | {"properties": to_raw(downgraded)})


def _downgrade_field(name: str, field: Raw, revision: Revision) -> Raw:
    found = _members(field, name)
    kind = decode_value(found.get("type", _NULL))
    if kind == "array":
        raise _not_supported(f"a multiple choice ({name!r})", revision)
    downgraded = dict(found)
    if kind != "boolean":  # every revision has defaults for booleans
        downgraded.pop("default", None)
    if "oneOf" in downgraded:
        options = [_members(option, name) for option in _items(downgraded.pop("oneOf"), name)]
        values = [option.get("const", _NULL) for option in options]
        if any(first_byte(value) != _TEXT for value in values):
            raise _not_supported(f"a choice of non-text values ({name!r})", revision)
        downgraded["enum"] = to_raw(values)
        downgraded["enumNames"] = to_raw([o.get("title", o["const"]) for o in options])
    return field if downgraded == found else to_raw(downgraded)


def _downgrade_sampling(params: Params, revision: Revision) -> None:
    """Remove from a sampling request what 2025-11-25 added: tools, several blocks per message."""
    if _uses_tools(params):
        raise _not_supported("a sampling with tools", revision)
    messages = params.get("messages")
    if messages is not None:
        found = _items(messages, "messages")
        downgraded = [_downgrade_message(message, revision) for message in found]
        if downgraded != found:
            params.put("messages", downgraded)


def _downgrade_message(message: Raw, revision: Revision) -> Raw:
    found = _members(message, "messages")
    content = found.get("content", _NULL)
    block = _single_block(content)
    if block is None:
        raise _not_supported("a sampling with several blocks in one message", revision)
    kind = decode_value(_members(block, "content").get("type", _NULL))
    if kind in _TOOL_BLOCKS or (kind == "audio" and not revision.has_audio):
        raise _not_supported(f"a sampling with a block of type {kind!r}", revision)
    return message if block is content else to_raw(found | {"content": block})


def _elicitation_mode(params: Params) -> str:
    raw = params.get("mode")
    mode = "form" if raw is None else decode_value(raw)
    if mode not in ("form", "url"):
        raise RpcError.invalid_params("expected 'form' or 'url' as 'mode'", {"field": "mode"})
    return str(mode)


def _uses_tools(params: Params) -> bool:
    return params.get("tools") is not None or params.get("toolChoice") is not None


def _not_supported(request: str, revision: Revision) -> RpcError:
    return RpcError.internal_error(
        f"the server requests {request}, which clients of {revision.date} do not support"
    )


def _members(raw: Raw, place: str) -> dict[str, Raw]:
    try:
        return read_members(raw)
    except ValueError:
        raise _malformed("an object", place) from None


def _items(raw: Raw, place: str) -> list[Raw]:
    try:
        return from_raw(raw, list[Raw])
    except ValueError:
        raise _malformed("an array", place) from None


def _malformed(expected: str, place: str) -> RpcError:
    return RpcError.internal_error(f"expected {expected} as {place!r} in the server's request")


# Responses, towards the server


def to_input_response(request: ServerRequest, result: Raw) -> Raw:
    """Convert the answer of a session-protocol client to an input response of 2026-07-28."""
    try:
        found = read_members(result)
    except ValueError:
        text = f"expected an object as the client's answer to {request.method}"
        raise RpcError.internal_error(text) from None
    stripped = _without_stateless_members(found)
    return result if stripped == found else to_raw(stripped)


def to_session_response(request: ServerRequest, result: Raw, revision: Revision) -> Raw:
    """Convert an input response for a server of `revision`; raises Invalid params."""
    try:
        found = read_members(result)
    except ValueError:
        text = f"expected an object as the answer to {request.method}"
        raise RpcError.invalid_params(text) from None
    checked = _without_stateless_members(found)
    if request.method == ELICIT:
        _check_elicitation_result(checked)
    elif request.method == SAMPLE:
        _check_sampling_result(checked, revision)
    else:
        _expect_type(checked, "roots", _ARRAY)
    return result if checked == found else to_raw(checked)


def _check_elicitation_result(response: dict[str, Raw]) -> None:
    if decode_value(response.get("action", _NULL)) not in _ACTIONS:
        raise _invalid_member("action", f"one of {', '.join(_ACTIONS)}")
    if bytes(response.get("content", _NULL)) == b"null":
        # Some clients write null for absent, and some servers reject that.
        response.pop("content", None)
    else:
        _expect_type(response, "content", _OBJECT)


def _check_sampling_result(response: dict[str, Raw], revision: Revision) -> None:
    _expect_type(response, "role", _TEXT)
    _expect_type(response, "model", _TEXT)
    _expect_type(response, "content", _OBJECT, _ARRAY)
    block = _single_block(response["content"])
    if block is not None:
        response["content"] = block  # a form that every revision has
    elif not revision.has_sampling_tools:
        raise _invalid_member("content", "one block")


def _expect_type(response: dict[str, Raw], key: str, *types: int) -> None:
    if key not in response or first_byte(response[key]) not in types:
        raise _invalid_member(key, " or ".join(_TYPE_NAMES[shape] for shape in types))


def _invalid_member(key: str, expected: str) -> RpcError:
    return RpcError.invalid_params(f"expected {expected} as {key!r}", {"field": key})


def _without_stateless_members(found: dict[str, Raw]) -> dict[str, Raw]:
    return {key: value for key, value in found.items() if key not in STATELESS_RESULT_MEMBERS}


def _single_block(content: Raw) -> Raw | None:
    """Return the only content block, also out of an array of one; None if there are several."""
    if first_byte(content) != _ARRAY:
        return content
    blocks = from_raw(content, list[Raw])
    return blocks[0] if len(blocks) == 1 else None
