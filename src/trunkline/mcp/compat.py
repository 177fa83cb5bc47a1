"""Compatibility between a client of one revision and a server of another.

    a client's params ──> to_session_params, to_stateless_params ──> in the server's revision
    a server's result or error ──> adapt_result, adapt_error ──> in the client's revision

Older revisions get an equivalent for each part that they lack:

    audio, up to 2024-11-05                  ──> a resource with the same bytes
    resource_link, up to 2025-03-26          ──> text: its name and <its URI>
    structuredContent, up to 2025-03-26      ──> dropped if a text block states it, else made text
    structuredContent that is no object      ──> text, up to 2025-11-25
    outputSchema, likewise                   ──> dropped

Malformed content stays as it is, for the client to reject.

Rules upheld here:
1. A client gets everything that it can read. What its revision lacks is converted, if possible.
2. What both revisions have in common keeps its bytes.
3. A result without anything to convert is searched for markers, not parsed.
"""

from hashlib import sha256

from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    UNSET,
    DuplicateKey,
    Raw,
    RpcError,
    from_raw,
    read_members,
    to_raw,
)
from trunkline.jsonrpc.raw_json import first_byte
from trunkline.mcp.cache_hints import STATELESS_RESULT_MEMBERS, CacheHints, read_cache_hints
from trunkline.mcp.errors import MISSING_CAPABILITY
from trunkline.mcp.features import is_object_schema
from trunkline.mcp.identity import Caller
from trunkline.mcp.input_required import (
    URL_ELICITATION_REQUIRED,
    read_input_required,
    strip_retry,
)
from trunkline.mcp.methods import CONTENT, EMPTY, MESSAGES, Method
from trunkline.mcp.negotiation import SERVER_INFO_KEY, add_envelope
from trunkline.mcp.params import ENVELOPE_KEYS, Params, decode_value, try_members
from trunkline.mcp.results import malformed_result
from trunkline.mcp.server_requests import is_supported, missing_capability_error
from trunkline.mcp.versions import SESSION_REVISIONS, Revision

RESOURCE_NOT_FOUND = -32002

_COMPLETE = Raw(b'"complete"')
_COMPLETE_MEMBERS = {"resultType": _COMPLETE}
_CACHE_HINT_KEYS = frozenset(CacheHints().to_members())
# The members that a result of a session-protocol server lacks.
_UNCACHEABLE_MEMBERS = _COMPLETE_MEMBERS | {
    key: to_raw(value) for key, value in CacheHints().to_members().items()
}

# The start of every escaped ASCII letter, and so of every other spelling of a marker.
_ESCAPE_MARKER = b"\\u00"

# Results up to this size, in bytes, are searched instead of parsed, which is faster.
MAX_SCANNED_BYTES = 4096

_RESULT_TYPE = b"resultType"
_COMPLETE_PREFIX, _COMPLETE_SUFFIX = b'{"resultType":"complete",', b',"resultType":"complete"}'
_STATELESS_MARKERS = (
    b"resultType",
    b"ttlMs",
    b"cacheScope",
    b"_meta",
    b"structuredContent",
    _ESCAPE_MARKER,
)
_EMPTY_OBJECT = Raw(b"{}")

# The error codes that 2026-07-28 reserves.
_RESERVED_CODES = range(-32099, -32019)

# The reserved codes without a meaning, which must not be sent.
_UNUSED_CODES = range(-32099, -32022)

_OBJECT, _TEXT = ord("{"), ord('"')
_NULL = Raw(b"null")


def _unknown_block_markers(revision: Revision) -> tuple[bytes, ...]:
    """Return how the content blocks that a revision lacks appear in JSON; empty if it has all."""
    links = () if revision.has_resource_links else (b'"resource_link"',)
    audio = () if revision.has_audio else (b'"audio"',)
    return (*links, *audio, _ESCAPE_MARKER) if links or audio else ()


_UNKNOWN_BLOCK_MARKERS = {
    revision: _unknown_block_markers(revision) for revision in SESSION_REVISIONS
}

# The revisions whose clients can read every result of every session-protocol server.
_UNRESTRICTED_REVISIONS = frozenset(
    revision
    for revision, markers in _UNKNOWN_BLOCK_MARKERS.items()
    if revision.has_structured_content and not markers
)


def to_session_params(method: Method, params: Params, server: Revision) -> None:
    """Remove from a client's params what a session-protocol server must not see."""
    if params.has_only_name_and_arguments:
        return
    params.drop_meta(ENVELOPE_KEYS)
    if params.has_only_standard_members:
        return
    if method.may_request_input:
        strip_retry(params)
    elif method.name == "completion/complete" and not server.has_completion_context:
        params.drop("context")


def to_stateless_params(method: Method, params: Params, caller: Caller) -> None:
    """Add an envelope to a session-protocol client's params, for a stateless server."""
    if not params.has_only_name_and_arguments:
        params.drop_meta(ENVELOPE_KEYS)
        if method.may_request_input:
            strip_retry(params)
    add_envelope(params, caller)


def adapt_result(
    method: Method,
    result: Raw,
    server: Revision,
    client: Revision,
    client_features: frozenset[str] = frozenset(),
) -> Raw:
    """Convert a server's result for a client of another revision.

    `client_features` limits what a stateless client may be asked. Raises RpcError if the client
    must not see the result.
    """
    if client.is_stateless:
        return to_stateless_result(method, result, server, client_features)
    if method.result is EMPTY:
        return _EMPTY_OBJECT
    if server.is_stateless:
        return to_session_result(method, result, client)
    if client in _UNRESTRICTED_REVISIONS or not needs_downgrade(result, client):
        return result
    return _to_older_result(method, result, client)


def passthrough_revisions(server: Revision) -> frozenset[Revision]:
    """Return the client revisions that get this server's call results unchanged."""
    return frozenset() if server.is_stateless else _UNRESTRICTED_REVISIONS


def to_stateless_result(
    method: Method, result: Raw, server: Revision, client_features: frozenset[str] = frozenset()
) -> Raw:
    """Add the members that 2026-07-28 requires of every result.

    The members of a small result that states its type are not checked for duplicates.
    """
    if len(result) <= MAX_SCANNED_BYTES and not method.is_cacheable:
        text = bytes(result)
        mentions = text.count(_RESULT_TYPE) if text.find(_ESCAPE_MARKER) < 0 else -1
        if mentions == 0 and text[:2] == b'{"':
            return Raw(_COMPLETE_PREFIX + text[1:])
        # A prefix or suffix of the whole text is a member of the outermost object.
        is_outermost = text.startswith(_COMPLETE_PREFIX) or text.endswith(_COMPLETE_SUFFIX)
        if mentions == 1 and is_outermost and server.is_stateless:
            return result
    found = _expect_object(result)
    if not server.is_stateless:
        # Members of these names mean something else in the session protocol.
        return to_raw(found | (_UNCACHEABLE_MEMBERS if method.is_cacheable else _COMPLETE_MEMBERS))
    if not _is_complete(found):
        return _incomplete_result(method, result, found, client_features)
    added: dict[str, Raw] = {}
    if "resultType" not in found:
        added["resultType"] = _COMPLETE
    if method.is_cacheable:
        for key, value in read_cache_hints(found).to_members().items():
            raw = to_raw(value)
            if bytes(found.get(key, b"")) != bytes(raw):  # absent or malformed
                added[key] = raw
    return to_raw(found | added) if added else result


def _incomplete_result(
    method: Method, result: Raw, found: dict[str, Raw], client_features: frozenset[str]
) -> Raw:
    """Return an `input_required` or extension result without cache hints; raises RpcError."""
    kind = decode_value(found["resultType"])
    if isinstance(kind, str) and kind not in ("input_required", "task"):
        return result  # an extension's result type, which client and server both know
    if kind != "input_required" or not method.may_request_input:
        raise _unusable_result(kind)
    input_required = read_input_required(result)
    requests = input_required.input_requests.values() if input_required else ()
    for request in requests:
        if not is_supported(request, client_features):
            raise missing_capability_error(request)
    kept = {key: value for key, value in found.items() if key not in _CACHE_HINT_KEYS}
    return result if kept == found else to_raw(kept)


def to_session_result(method: Method, result: Raw, client: Revision) -> Raw:
    """Remove what session-protocol clients do not know. Some reject unknown members."""
    if len(result) <= MAX_SCANNED_BYTES and client in _UNRESTRICTED_REVISIONS:
        text, rest = bytes(result), b""
        if text.startswith(_COMPLETE_PREFIX):
            rest = b"{" + text[len(_COMPLETE_PREFIX) :]
        elif text.endswith(_COMPLETE_SUFFIX):
            rest = text[: -len(_COMPLETE_SUFFIX)] + b"}"
        if rest and not contains_any(rest, _STATELESS_MARKERS):
            return Raw(rest)
    found = _expect_object(result)
    if not _is_complete(found):
        raise _unusable_result(decode_value(found["resultType"]))
    kept = {key: value for key, value in found.items() if key not in STATELESS_RESULT_MEMBERS}
    meta = kept.get("_meta")
    if meta is not None and SERVER_INFO_KEY in (meta_members := try_members(meta) or {}):
        del meta_members[SERVER_INFO_KEY], kept["_meta"]
        if meta_members:
            kept["_meta"] = to_raw(meta_members)
    downgrade_result(method, kept, client)
    return result if kept == found else to_raw(kept)


def _to_older_result(method: Method, result: Raw, client: Revision) -> Raw:
    found = _expect_object(result)
    kept = dict(found)
    downgrade_result(method, kept, client)
    return result if kept == found else to_raw(kept)


def adapt_error(error: RpcError, server: Revision, client: Revision) -> RpcError:
    """Convert a server's error to a code that the client's revision allows."""
    same_era = server.is_stateless is client.is_stateless
    if same_era and not client.is_stateless:
        if error.code == URL_ELICITATION_REQUIRED and not client.has_elicitation_modes:
            return RpcError(INTERNAL_ERROR, error.message, error.data)
        return error
    if client.is_stateless and error.code == RESOURCE_NOT_FOUND:
        return RpcError(INVALID_PARAMS, error.message, error.data)
    if not client.is_stateless and error.code == INVALID_PARAMS and _has_uri(error):
        return RpcError(RESOURCE_NOT_FOUND, error.message, error.data)
    if error.code in (_UNUSED_CODES if same_era else _RESERVED_CODES):
        data: dict[str, object] = {"upstreamCode": error.code}
        if error.code == MISSING_CAPABILITY:
            data |= try_members(to_raw(None if error.data is UNSET else error.data)) or {}
        elif error.data is not UNSET:
            data["upstreamData"] = error.data
        return RpcError(INTERNAL_ERROR, error.message, data)
    return error


def stateless_list_result(result: Raw, cache_hints: CacheHints, server_info: object) -> Raw:
    """Return one of the gateway's own lists as 2026-07-28 requires it."""
    envelope = {
        "resultType": "complete",
        **cache_hints.to_members(),
        "_meta": {SERVER_INFO_KEY: server_info},
    }
    return to_raw(envelope | from_raw(result, dict[str, Raw]))


def _expect_object(result: Raw) -> dict[str, Raw]:
    try:
        return read_members(result)
    except DuplicateKey as error:
        raise malformed_result(str(error)) from None
    except ValueError:
        raise malformed_result("expected an object") from None


def _unusable_result(kind: object) -> RpcError:
    if kind == "input_required":
        return RpcError.internal_error("the server requires input that this client cannot give")
    if kind == "task":
        return malformed_result("a task that was not requested")
    return malformed_result("unknown 'resultType'")


def _has_uri(error: RpcError) -> bool:
    """Return whether an error names a resource. Only "resource not found" does."""
    return error.data is not UNSET and "uri" in (try_members(to_raw(error.data)) or {})


def _is_complete(found: dict[str, Raw]) -> bool:
    return decode_value(found.get("resultType", _COMPLETE)) == "complete"


# Downgrades to older revisions


def contains_any(text: bytes, markers: tuple[bytes, ...]) -> bool:
    """Return whether a text contains one of the markers."""
    return max(map(text.find, markers)) >= 0  # a C loop; a Python loop over the markers is slower


def needs_downgrade(result: Raw, client: Revision) -> bool:
    """Return whether a result may contain what clients before 2025-06-18 cannot read."""
    return b'"structuredContent"' in bytes(result) or _may_have_unknown_blocks(result, client)


def downgrade_result(method: Method, found: dict[str, Raw], client: Revision) -> None:
    """Convert the members of a result for a session-protocol client, in place."""
    if method.result is CONTENT:
        if "content" in found:
            found["content"] = _downgrade_blocks(found["content"], client)
        structured = found.get("structuredContent")
        if structured is not None and not _can_read_structured(structured, client):
            del found["structuredContent"]
            _add_structured_as_text(found, structured)
    elif method.result is MESSAGES and "messages" in found:
        found["messages"] = _downgrade_messages(found["messages"], client)


def downgrade_tool(definition: Raw, client: Revision) -> Raw:
    """Return the definition of a tool for a client of this revision.

    Strict clients reject a whole list because of one schema that they cannot read.
    """
    if client.allows_any_structured_content:
        return definition
    found = read_members(definition)
    schema = found.get("outputSchema")
    if schema is None or (client.has_structured_content and is_object_schema(schema)):
        return definition
    del found["outputSchema"]
    return to_raw(found)


# Content blocks


def _may_have_unknown_blocks(raw: Raw, client: Revision) -> bool:
    markers = _UNKNOWN_BLOCK_MARKERS[client]
    return bool(markers) and contains_any(bytes(raw), markers)


def _downgrade_blocks(content: Raw, client: Revision) -> Raw:
    if not _may_have_unknown_blocks(content, client):
        return content
    blocks = _try_items(content)
    downgraded = [_downgrade_block(block, client) for block in blocks]
    return content if downgraded == blocks else to_raw(downgraded)


def _downgrade_messages(messages: Raw, client: Revision) -> Raw:
    if not _may_have_unknown_blocks(messages, client):
        return messages
    found = _try_items(messages)
    downgraded = [_downgrade_message(message, client) for message in found]
    return messages if downgraded == found else to_raw(downgraded)


def _downgrade_message(message: Raw, client: Revision) -> Raw:
    found = try_members(message) or {}
    content = found.get("content", _NULL)
    downgraded = _downgrade_block(content, client)
    return message if downgraded is content else to_raw(found | {"content": downgraded})


def _downgrade_block(block: Raw, client: Revision) -> Raw:
    found = try_members(block) or {}
    kind = decode_value(found.get("type", _NULL))
    if kind == "resource_link" and not client.has_resource_links:
        return _link_as_text(block, found)
    if kind == "audio" and not client.has_audio:
        return _audio_as_resource(block, found)
    return block


def _link_as_text(block: Raw, link: dict[str, Raw]) -> Raw:
    name, uri = (decode_value(link.get(key, _NULL)) for key in ("name", "uri"))
    if not isinstance(name, str) or not isinstance(uri, str):
        return block
    return to_raw({"type": "text", "text": f"{name} <{uri}>"} | _block_metadata(link))


def _audio_as_resource(block: Raw, audio: dict[str, Raw]) -> Raw:
    data = audio.get("data", _NULL)
    if first_byte(data) != _TEXT:
        return block
    # The URI derives from the content: clients may cache a resource by its URI.
    uri = f"urn:trunkline:audio:{sha256(bytes(data)).hexdigest()}"
    resource: dict[str, object] = {"uri": uri, "blob": data}
    if "mimeType" in audio:
        resource["mimeType"] = audio["mimeType"]
    return to_raw({"type": "resource", "resource": resource} | _block_metadata(audio))


def _block_metadata(block: dict[str, Raw]) -> dict[str, object]:
    return {key: block[key] for key in ("annotations", "_meta") if key in block}


# Structured content


def _can_read_structured(structured: Raw, client: Revision) -> bool:
    is_allowed = client.allows_any_structured_content or first_byte(structured) == _OBJECT
    return client.has_structured_content and is_allowed


def _add_structured_as_text(found: dict[str, Raw], structured: Raw) -> None:
    """Add the structured content as text, unless the content already states it."""
    if bytes(structured) == b"null":
        return
    blocks = _try_items(found.get("content", _NULL))
    texts = [text for block in blocks if (text := _text_of(block)) is not None]
    # For objects the specification requires an equivalent text; for other values it does not.
    equivalents = texts if first_byte(structured) == _OBJECT else _equal_texts(structured, texts)
    if not equivalents:
        text_block = {"type": "text", "text": bytes(structured).decode()}
        found["content"] = to_raw([*blocks, text_block])


def _text_of(block: Raw) -> str | None:
    found = try_members(block) or {}
    text = decode_value(found.get("text", _NULL))
    return text if isinstance(text, str) else None


def _equal_texts(structured: Raw, texts: list[str]) -> list[str]:
    wanted = _canonical_json(structured)
    return [text for text in texts if _canonical_json(text.encode()) == wanted]


def _canonical_json(text: Raw | bytes) -> bytes:
    """Return JSON without insignificant white space and escapes; other text is unchanged."""
    try:
        return bytes(to_raw(from_raw(text, object)))
    except ValueError:
        return bytes(text)


def _try_items(raw: Raw) -> list[Raw]:
    try:
        return from_raw(raw, list[Raw])
    except ValueError:
        return []
