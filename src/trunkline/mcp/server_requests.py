"""Server requests: requests of a server to a client during a call, in the form of either era.

    a server's request ──> to_input_request, to_session_request ──> in the client's revision
    the client's response ──> to_input_response, to_session_response ──> in the server's revision

Nothing is lost silently: a request that a revision cannot express is an error that says so.
Requests that are the same in all revisions, as those without an entry in `_TRANSLATIONS`, need only
their row in `mcp/methods.py`.

Rules upheld here:
1. Only clients that declared a capability get its requests, in a form that their revision has.
2. Members that are equal in both eras keep their bytes.
3. A server never gets a malformed response.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.jsonrpc.raw_json import UnsetType, first_byte
from trunkline.mcp.cache_hints import STATELESS_RESULT_MEMBERS
from trunkline.mcp.capabilities import read_client_features
from trunkline.mcp.errors import MISSING_CAPABILITY
from trunkline.mcp.methods import SERVER_REQUESTS, TO_CALLER
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
    params, row = Params(request.params), SERVER_REQUESTS.get(request.method)
    if row is None or row.mode is not TO_CALLER:
        raise RpcError.method_not_found(request.method)
    if row.capability is None:
        return {}
    detail = _translation(request).required_detail(params)
    return {row.capability: {} if detail is None else {detail: {}}}


def is_declared(request: ServerRequest, capabilities: Mapping[str, Any]) -> bool:
    """Return whether a client with these capabilities can answer a request."""
    return is_supported(request, read_client_features(capabilities))


def is_supported(request: ServerRequest, client_features: frozenset[str]) -> bool:
    """Return whether a client with these features can answer a request."""
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
    declared = (name.partition(".")[0] for name in read_client_features(capabilities))
    if capability not in declared:
        return RpcError.method_not_found(request.method)
    return RpcError.invalid_params(f"the client did not declare this kind of {capability}")


def unanswered_response(request: ServerRequest) -> Raw | RpcError:
    """Return the response for a session-protocol server when the client does not answer."""
    return _translation(request).unanswered()


# Requests, towards the client


def to_input_request(request: ServerRequest) -> ServerRequest:
    """Convert a session-protocol request to an input request of 2026-07-28."""
    if request.params is UNSET:
        return request
    params = Params(request.params)
    for key in ("_meta", "task"):
        params.drop(key)
    if request.method == ELICIT:
        params.drop("elicitationId")
        if params.get("mode") is None:
            params.put("mode", "form")
    return ServerRequest(request.method, params.encode())


def to_session_request(
    request: ServerRequest, revision: Revision, elicitation_id: str
) -> ServerRequest:
    """Convert a request for a client of `revision`; raises RpcError if that is impossible.

    `elicitation_id` is used where that revision requires an id and the request has none.
    """
    downgrade = _translation(request).downgrade
    if downgrade is None:
        return request
    params = Params(request.params)
    downgrade(params, revision, elicitation_id)
    return ServerRequest(request.method, params.encode())


def _downgrade_elicitation(params: Params, revision: Revision, elicitation_id: str) -> None:
    if not revision.has_elicitation:
        raise _not_supported("an elicitation", revision)
    if _elicitation_mode(params) == "url":
        if not revision.has_elicitation_modes:
            raise _not_supported("an elicitation of mode 'url'", revision)
        if params.get("elicitationId") is None:
            params.put("elicitationId", elicitation_id)
    else:
        if not revision.has_elicitation_modes:
            params.drop("mode")
        if not revision.has_extended_forms:
            _downgrade_form(params, revision)


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


def _downgrade_sampling(params: Params, revision: Revision, _: str) -> None:
    """Remove from a sampling request what 2025-11-25 added: tools, several blocks per message."""
    if revision.has_sampling_tools:
        return
    if _sampling_detail(params) is not None:
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


def _sampling_detail(params: Params) -> str | None:
    uses_tools = params.get("tools") is not None or params.get("toolChoice") is not None
    return "tools" if uses_tools else None


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
    _translation(request).check_result(checked, revision)
    return result if checked == found else to_raw(checked)


def _check_roots_result(response: dict[str, Raw], _: Revision) -> None:
    _expect_type(response, "roots", _ARRAY)


def _check_elicitation_result(response: dict[str, Raw], _: Revision) -> None:
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


# What is special about one method


def _any_detail(_: Params) -> str | None:
    return None


def _any_result(_response: dict[str, Raw], _: Revision) -> None: ...


def _not_answered() -> Raw | RpcError:
    return RpcError.internal_error("the client did not answer")


class _Translation(NamedTuple):
    """How one server request differs from others; by default it is the same in all revisions."""

    # Returns the detail of the capability that a request needs; raises RpcError
    required_detail: Callable[[Params], str | None] = _any_detail
    # Edits params for a client of a revision; None if there is nothing to edit
    downgrade: Callable[[Params, Revision, str], None] | None = None
    # Checks the members of a result for a server of a revision, and may edit them
    check_result: Callable[[dict[str, Raw], Revision], None] = _any_result
    unanswered: Callable[[], Raw | RpcError] = _not_answered


_SAME_IN_ALL = _Translation()
_TRANSLATIONS = {
    LIST_ROOTS: _Translation(check_result=_check_roots_result),
    SAMPLE: _Translation(
        _sampling_detail,
        _downgrade_sampling,
        _check_sampling_result,
        lambda: RpcError(USER_REJECTED, "User rejected sampling request"),
    ),
    ELICIT: _Translation(
        _elicitation_mode,
        _downgrade_elicitation,
        _check_elicitation_result,
        lambda: Raw(b'{"action":"cancel"}'),
    ),
}


def _translation(request: ServerRequest) -> _Translation:
    return _TRANSLATIONS.get(request.method, _SAME_IN_ALL)
