"""Questions: what a server may ask a client in the middle of a call, in either era's shape.

    a server's question ──> for_envelope, for_handshake ──> as the client's revision has it
    the client's answer ──> answer_for_envelope, answer_for_handshake ──> as the server's has it

Refuses to lose anything silently: what a revision has no shape for is an error that says so.

Rules upheld here:
1. A question is asked of those who declared that they can be asked it, and in a shape they know.
2. What is the same in both eras stays the bytes it was.
3. A server gets no answer that is not shaped like one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, members, to_raw
from trunkline.jsonrpc.raw import UnsetType, first_byte
from trunkline.mcp.cacheable import ENVELOPE_ONLY
from trunkline.mcp.capabilities import fingerprint
from trunkline.mcp.headers import MISSING_CAPABILITY
from trunkline.mcp.meta import Params, peek
from trunkline.mcp.versions import V2025_03_26, V2025_06_18, V2025_11_25

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
LIST_ROOTS = "roots/list"

USER_REJECTED = -1
"""What a client of the handshake era answers when its user does not want a sampling."""

_ACTIONS = ("accept", "decline", "cancel")
_OBJECT, _ARRAY, _TEXT = ord("{"), ord("["), ord('"')
_SHAPES = {_OBJECT: "an object", _ARRAY: "an array", _TEXT: "a string"}
_NULL, _NOTHING = Raw(b"null"), Raw(b"{}")

_SINCE = {"audio": V2025_03_26, "tool_use": V2025_11_25, "tool_result": V2025_11_25}
"""The revision that brought a type of block to samplings."""


class Question(NamedTuple):
    """One thing that a server wants to know of a client."""

    method: str
    params: Raw | UnsetType = UNSET


def needed(question: Question) -> dict[str, Any]:
    """Return the capability that a client must have declared to be asked; raises RpcError."""
    params = Params(question.params)
    if question.method == LIST_ROOTS:
        return {"roots": {}}
    if question.method == SAMPLE:
        return {"sampling": {"tools": {}} if _uses_tools(params) else {}}
    if question.method == ELICIT:
        return {"elicitation": {_mode(params): {}}}
    raise RpcError.method_not_found(question.method)


def is_declared(question: Question, capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client that declared these may be asked."""
    return is_askable(question, fingerprint(capabilities))


def is_askable(question: Question, askable: frozenset[str]) -> bool:
    """Tell the same by the fingerprint of what a client declared."""
    return fingerprint(needed(question)) <= askable


def missing_capability(question: Question) -> RpcError:
    """Return what a client of the envelope era gets whose call cannot go on without an answer."""
    data = {"requiredCapabilities": needed(question)}
    return RpcError(MISSING_CAPABILITY, "Missing required client capability", data)


def undeclared(question: Question, capabilities: Mapping[str, Any]) -> RpcError:
    """Return what a server of the handshake era gets that asks what was not declared."""
    capability = next(iter(needed(question)))
    if not any(name.startswith(capability) for name in fingerprint(capabilities)):
        return RpcError.method_not_found(question.method)
    return RpcError.invalid_params(f"the client did not declare this kind of {capability}")


def refused(question: Question) -> Raw | RpcError:
    """Return what a server of the handshake era gets when nobody answers."""
    if question.method == ELICIT:
        return Raw(b'{"action":"cancel"}')
    if question.method == SAMPLE:
        return RpcError(USER_REJECTED, "User rejected sampling request")
    return RpcError.internal_error("the client did not answer")


# Questions


def for_envelope(question: Question) -> Question:
    """Return a question of a handshake server as an input request of 2026-07-28."""
    if question.params is UNSET:
        return question
    params = Params(question.params)
    for key in ("_meta", "task", "elicitationId"):
        params.drop(key)
    if question.method == ELICIT and params.get("mode") is None:
        params.put("mode", "form")
    return Question(question.method, params.encode())


def for_handshake(question: Question, version: str, elicitation_id: str) -> Question:
    """Return a question as a client of `version` must see it; raises RpcError if it cannot.

    `elicitation_id` is used where that revision wants one and the question has none.
    """
    if question.method == LIST_ROOTS:
        return question
    params = Params(question.params)
    if question.method == SAMPLE:
        if version < V2025_11_25:
            _narrow_sampling(params, version)
    elif version < V2025_06_18:
        raise _impossible("an elicitation", version)
    elif _mode(params) == "url":
        if version < V2025_11_25:
            raise _impossible("an elicitation of mode 'url'", version)
        if params.get("elicitationId") is None:
            params.put("elicitationId", elicitation_id)
    elif version < V2025_11_25:
        params.drop("mode")
        _narrow_form(params, version)
    return Question(question.method, params.encode())


def _narrow_form(params: Params, version: str) -> None:
    """Write a form without what 2025-11-25 has added to forms."""
    schema = params.get("requestedSchema")
    if schema is None:
        return
    found = _members(schema, "requestedSchema")
    fields = _members(found.get("properties", _NOTHING), "properties")
    narrowed = {name: _narrow_field(name, field, version) for name, field in fields.items()}
    if narrowed != fields:
        params.put("requestedSchema", found | {"properties": to_raw(narrowed)})


def _narrow_field(name: str, field: Raw, version: str) -> Raw:
    found = _members(field, name)
    kind = peek(found.get("type", _NULL))
    if kind == "array":
        raise _impossible(f"a choice of several ({name!r})", version)
    narrowed = dict(found)
    if kind != "boolean":  # which always could have one
        narrowed.pop("default", None)
    if "oneOf" in narrowed:
        options = [_members(option, name) for option in _items(narrowed.pop("oneOf"), name)]
        values = [option.get("const", _NULL) for option in options]
        if any(first_byte(value) != _TEXT for value in values):
            raise _impossible(f"a choice of what is no text ({name!r})", version)
        narrowed["enum"] = to_raw(values)
        narrowed["enumNames"] = to_raw([o.get("title", o["const"]) for o in options])
    return field if narrowed == found else to_raw(narrowed)


def _narrow_sampling(params: Params, version: str) -> None:
    """Write a sampling without what 2025-11-25 has added: tools, and several blocks at once."""
    if _uses_tools(params):
        raise _impossible("a sampling with tools", version)
    messages = params.get("messages")
    if messages is not None:
        found = _items(messages, "messages")
        narrowed = [_narrow_message(message, version) for message in found]
        if narrowed != found:
            params.put("messages", narrowed)


def _narrow_message(message: Raw, version: str) -> Raw:
    found = _members(message, "messages")
    content = found.get("content", _NULL)
    block = _only_block(content)
    if block is None:
        raise _impossible("a sampling with several blocks in one message", version)
    kind = peek(_members(block, "content").get("type", _NULL))
    if isinstance(kind, str) and version < _SINCE.get(kind, version):
        raise _impossible(f"a sampling with a block of type {kind!r}", version)
    return message if block is content else to_raw(found | {"content": block})


def _mode(params: Params) -> str:
    raw = params.get("mode")
    mode = "form" if raw is None else peek(raw)
    if mode not in ("form", "url"):
        raise RpcError.invalid_params("expected 'form' or 'url' as 'mode'", {"field": "mode"})
    return str(mode)


def _uses_tools(params: Params) -> bool:
    return params.get("tools") is not None or params.get("toolChoice") is not None


def _impossible(what: str, version: str) -> RpcError:
    return RpcError.internal_error(
        f"the server asks {what}, which clients of {version} do not know"
    )


def _members(raw: Raw, what: str) -> dict[str, Raw]:
    try:
        return members(raw)
    except ValueError:
        raise _malformed("an object", what) from None


def _items(raw: Raw, what: str) -> list[Raw]:
    try:
        return from_raw(raw, list[Raw])
    except ValueError:
        raise _malformed("an array", what) from None


def _malformed(expected: str, what: str) -> RpcError:
    return RpcError.internal_error(f"expected {expected} as {what!r} in what the server asks")


# Answers


def answer_for_envelope(question: Question, result: Raw) -> Raw:
    """Return what a handshake client answered as an input response of 2026-07-28."""
    try:
        found = members(result)
    except ValueError:
        text = f"expected an object as the client's answer to {question.method}"
        raise RpcError.internal_error(text) from None
    bare = _without_envelope(found)
    return result if bare == found else to_raw(bare)


def answer_for_handshake(question: Question, result: Raw, version: str) -> Raw:
    """Return an input response as a server of `version` must see it; raises Invalid params."""
    try:
        found = members(result)
    except ValueError:
        text = f"expected an object as the answer to {question.method}"
        raise RpcError.invalid_params(text) from None
    fitted = _without_envelope(found)
    if question.method == ELICIT:
        _fit_elicited(fitted)
    elif question.method == SAMPLE:
        _fit_sampled(fitted, version)
    else:
        _expect(fitted, "roots", _ARRAY)
    return result if fitted == found else to_raw(fitted)


def _fit_elicited(answer: dict[str, Raw]) -> None:
    if peek(answer.get("action", _NULL)) not in _ACTIONS:
        raise _unfit("action", f"one of {', '.join(_ACTIONS)}")
    if bytes(answer.get("content", _NULL)) == b"null":
        answer.pop("content", None)  # some write what is absent, and some cannot read that
    else:
        _expect(answer, "content", _OBJECT)


def _fit_sampled(answer: dict[str, Raw], version: str) -> None:
    _expect(answer, "role", _TEXT)
    _expect(answer, "model", _TEXT)
    _expect(answer, "content", _OBJECT, _ARRAY)
    block = _only_block(answer["content"])
    if block is not None:
        answer["content"] = block  # which every revision knows
    elif version < V2025_11_25:
        raise _unfit("content", "one block")


def _expect(answer: dict[str, Raw], key: str, *shapes: int) -> None:
    if key not in answer or first_byte(answer[key]) not in shapes:
        raise _unfit(key, " or ".join(_SHAPES[shape] for shape in shapes))


def _unfit(key: str, expected: str) -> RpcError:
    return RpcError.invalid_params(f"expected {expected} as {key!r}", {"field": key})


def _without_envelope(found: dict[str, Raw]) -> dict[str, Raw]:
    return {key: value for key, value in found.items() if key not in ENVELOPE_ONLY}


def _only_block(content: Raw) -> Raw | None:
    """Return the one block of a content, or of an array of them; None if they are not one."""
    if first_byte(content) != _ARRAY:
        return content
    blocks = from_raw(content, list[Raw])
    return blocks[0] if len(blocks) == 1 else None
