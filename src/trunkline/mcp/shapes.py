"""Shapes: what older revisions have no shape for, written in one that they have.

    audio, up to 2024-11-05                  ──> a resource with the same bytes
    resource_link, up to 2025-03-26          ──> text: its name and <its URI>
    structuredContent, up to 2025-03-26      ──> gone, if some text says it as well
    structuredContent that is no object      ──> text, up to 2025-11-25
    outputSchema, likewise                   ──> gone
    inputSchema without `type: "object"`     ──> with it, for everybody

Refuses to judge: what is not shaped as MCP says stays as it is, for the client to refuse.

Rules upheld here:
1. Nothing that a client could read is lost: what has to go is said in another way.
2. A result that holds nothing of the kind is searched, and not read.
"""

from hashlib import sha256

from trunkline.jsonrpc import Raw, from_raw, members, to_raw
from trunkline.jsonrpc.raw import first_byte
from trunkline.mcp.meta import peek
from trunkline.mcp.versions import V2024_11_05, V2025_03_26, V2025_06_18, V2026_07_28

_OBJECT, _TEXT = ord("{"), ord('"')
_NULL = Raw(b"null")
_ANY_OBJECT = Raw(b'{"type":"object"}')

ESCAPED = b"\\u00"
"""Begins every other spelling of an ASCII letter, and so of all that is searched for."""

_FOREIGN = {
    V2024_11_05: (b'"resource_link"', b'"audio"', ESCAPED),
    V2025_03_26: (b'"resource_link"', ESCAPED),
}
"""The types of blocks that a revision does not know, as they are written."""


def has_any(written: bytes, marks: tuple[bytes, ...]) -> bool:
    """Tell whether one of the marks is written somewhere."""
    return max(map(written.find, marks)) >= 0  # without a loop of our own


def is_foreign(result: Raw, version: str) -> bool:
    """Tell whether a result may hold what clients before 2025-06-18 do not know."""
    return b'"structuredContent"' in bytes(result) or _has_foreign_blocks(result, version)


def narrow_result(method: str, found: dict[str, Raw], version: str) -> None:
    """Write the members of a result as a handshake client of `version` can read them."""
    if method == "tools/call":
        if "content" in found:
            found["content"] = _narrow_blocks(found["content"], version)
        structured = found.get("structuredContent")
        if structured is not None and (version < V2025_06_18 or first_byte(structured) != _OBJECT):
            del found["structuredContent"]
            _say_in_words(found, structured)
    elif method == "prompts/get" and "messages" in found:
        found["messages"] = _narrow_messages(found["messages"], version)


def narrow_tool(definition: Raw, version: str) -> Raw:
    """Return the definition of a tool as a client of `version` can read it.

    Strict clients refuse a whole list for one schema that they do not understand.
    """
    if version >= V2026_07_28:
        return definition
    found = members(definition)
    schema = found.get("outputSchema")
    if schema is None or (version >= V2025_06_18 and _is_of_objects(schema)):
        return definition
    del found["outputSchema"]
    return to_raw(found)


def with_input_schema(definition: Raw) -> Raw:
    """Return the definition of a tool with an inputSchema of objects, as all must have."""
    found = members(definition)
    schema = found.get("inputSchema", _NULL)
    if _is_of_objects(schema):
        return definition
    if first_byte(schema) != _OBJECT:
        return to_raw(found | {"inputSchema": _ANY_OBJECT})
    known = _try_members(schema)
    if known is None:  # a key twice, say
        return definition
    return to_raw(found | {"inputSchema": known | {"type": "object"}})


def _is_of_objects(schema: Raw) -> bool:
    known = _try_members(schema)
    return known is not None and peek(known.get("type", _NULL)) == "object"


# Blocks


def _has_foreign_blocks(raw: Raw, version: str) -> bool:
    marks = _FOREIGN.get(version)
    return marks is not None and has_any(bytes(raw), marks)


def _narrow_blocks(content: Raw, version: str) -> Raw:
    if not _has_foreign_blocks(content, version):
        return content
    blocks = _try_items(content)
    narrowed = [_narrow_block(block, version) for block in blocks]
    return content if narrowed == blocks else to_raw(narrowed)


def _narrow_messages(messages: Raw, version: str) -> Raw:
    if not _has_foreign_blocks(messages, version):
        return messages
    found = _try_items(messages)
    narrowed = [_narrow_message(message, version) for message in found]
    return messages if narrowed == found else to_raw(narrowed)


def _narrow_message(message: Raw, version: str) -> Raw:
    found = _try_members(message) or {}
    content = found.get("content", _NULL)
    narrowed = _narrow_block(content, version)
    return message if narrowed is content else to_raw(found | {"content": narrowed})


def _narrow_block(block: Raw, version: str) -> Raw:
    found = _try_members(block) or {}
    kind = peek(found.get("type", _NULL))
    if kind == "resource_link" and version < V2025_06_18:
        return _as_text(block, found)
    if kind == "audio" and version < V2025_03_26:
        return _as_resource(block, found)
    return block


def _as_text(block: Raw, link: dict[str, Raw]) -> Raw:
    name, uri = (peek(link.get(key, _NULL)) for key in ("name", "uri"))
    if not isinstance(name, str) or not isinstance(uri, str):
        return block
    return to_raw({"type": "text", "text": f"{name} <{uri}>"} | _remarks(link))


def _as_resource(block: Raw, audio: dict[str, Raw]) -> Raw:
    data = audio.get("data", _NULL)
    if first_byte(data) != _TEXT:
        return block
    # Named after what it holds: clients may keep what they got under its URI.
    uri = f"urn:trunkline:audio:{sha256(bytes(data)).hexdigest()}"
    resource: dict[str, object] = {"uri": uri, "blob": data}
    if "mimeType" in audio:
        resource["mimeType"] = audio["mimeType"]
    return to_raw({"type": "resource", "resource": resource} | _remarks(audio))


def _remarks(block: dict[str, Raw]) -> dict[str, object]:
    return {key: block[key] for key in ("annotations", "_meta") if key in block}


# Structured content


def _say_in_words(found: dict[str, Raw], structured: Raw) -> None:
    """See to it that the content says what the client cannot read elsewhere."""
    if bytes(structured) == b"null":
        return
    blocks = _try_items(found.get("content", _NULL))
    texts = [text for block in blocks if (text := _text_of(block)) is not None]
    # Servers are told to write an object as text too, in words of their own; anything else is new.
    enough = texts if first_byte(structured) == _OBJECT else _equal_to(structured, texts)
    if not enough:
        said = {"type": "text", "text": bytes(structured).decode()}
        found["content"] = to_raw([*blocks, said])


def _text_of(block: Raw) -> str | None:
    found = _try_members(block) or {}
    text = peek(found.get("text", _NULL))
    return text if isinstance(text, str) else None


def _equal_to(structured: Raw, texts: list[str]) -> list[str]:
    wanted = _settled(structured)
    return [text for text in texts if _settled(text.encode()) == wanted]


def _settled(written: Raw | bytes) -> bytes:
    """Return JSON without its liberties, white space and escapes; as it is, if it is none."""
    try:
        return bytes(to_raw(from_raw(written, object)))
    except ValueError:
        return bytes(written)


def _try_members(raw: Raw) -> dict[str, Raw] | None:
    try:
        return members(raw)
    except ValueError:
        return None


def _try_items(raw: Raw) -> list[Raw]:
    try:
        return from_raw(raw, list[Raw])
    except ValueError:
        return []
