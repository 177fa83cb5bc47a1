"""Headers: what 2026-07-28 repeats of a body in HTTP headers; clients write them, servers compare.

    version, method, params.name | uri | taskId     <──>  MCP-Protocol-Version, Mcp-Method, Mcp-Name
    arguments, at the paths that a tool's inputSchema marks with "x-mcp-header": "Region"
                                                    <──>  Mcp-Param-Region

Refuses to judge the body: where it has no text to repeat (a name that is missing or a number, say)
nothing is compared, since whoever reads that member refuses it anyway, and says why.

Rules upheld here:
1. Whatever the text, its encoding is printable ASCII without white space around it (so nothing can
   break out of a header), and decodes to that text and no other.
2. A header sent twice is refused: of two readers, each could believe another copy.
3. Values compare exactly, once decoded; integers compare as numbers, of any length.
4. An error shows no argument: headers and names may go to a log, arguments may not.
"""

import base64
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast

from trunkline.jsonrpc import Raw, RpcError, from_raw, members
from trunkline.jsonrpc.raw import first_byte
from trunkline.mcp.meta import PREFIX, Meta, Params

HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

MAX_DEPTH = 32
"""How many objects deep in a tool's arguments a value may lie that is repeated in a header."""

_VERSION = b"mcp-protocol-version"
_METHOD = b"mcp-method"
_NAME = b"mcp-name"
_PARAM = b"mcp-param-"

_REVISION = f"{PREFIX}protocolVersion"

_TITLES = {_VERSION: "MCP-Protocol-Version", _METHOD: "Mcp-Method", _NAME: "Mcp-Name"}

_NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The member of params that a method repeats as Mcp-Name."""

_OPEN, _CLOSE = "=?base64?", "?="
_BLANK = " \t"
_MARKER = _OPEN.encode()

_readable = re.compile(r"[\t -~]*").fullmatch
_token = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_integral = re.compile(r"(-?)([0-9]+)(?:\.0+)?").fullmatch
_escaped = re.compile(rb"\\u00[267]").search

_MARK = "x-mcp-header"
_KINDS = ("integer", "string", "boolean")

# What holds schemas in JSON Schema, 2020-12 and 7, beside `properties`. All else holds data, or
# nothing that we know: "x-mcp-header" in a `default` or an `enum` is no annotation.
_MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"})
_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}
    | {"additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "then", "else"}
)

Path: TypeAlias = tuple[str, ...]
_Node: TypeAlias = tuple[Path | None, object]
"""A schema, and the keys of `properties` that alone lead to it; None where others are needed."""


class HeaderParam(NamedTuple):
    """One argument of a tool that is repeated in a header."""

    header: bytes
    """The name in lower case, such as b"mcp-param-region"."""
    path: Path
    kind: str
    """What the schema says: integer, string or boolean."""


Mirrored: TypeAlias = tuple[str, Meta | None, str | None]
"""A method, what has the revision, and what is named; None where a body says nothing of that."""

HeaderMap: TypeAlias = tuple[HeaderParam, ...]
"""All arguments of a tool that are repeated in headers; most tools have none."""


def encode_value(text: str) -> str:
    """Return the header value for `text`: the same if it can be, else base64 between markers."""
    plain = text.isascii() and text.isprintable() and text == text.strip(_BLANK)
    if plain and not (text.startswith(_OPEN) and text.endswith(_CLOSE)):
        return text
    return f"{_OPEN}{base64.b64encode(text.encode()).decode()}{_CLOSE}"


def decode_value(raw: str | bytes) -> str:
    """Return the text of a header value; raises ValueError where nobody could have written it."""
    text = _plain(raw)
    if not (text.startswith(_OPEN) and text.endswith(_CLOSE, len(_OPEN))):
        return text
    coded = text[len(_OPEN) : -len(_CLOSE)]
    with suppress(ValueError):
        found = base64.b64decode(coded, validate=True).decode()
        # One text has one spelling; the decoder overlooks bits that the last letter has to spare.
        if base64.b64encode(found.encode()).decode() == coded:
            return found
    raise ValueError("expected canonical base64 of UTF-8")


def mirror(version: str, method: str, params: Params) -> list[tuple[bytes, bytes]]:
    """Return the headers that a request to a server of `version` must have."""
    headers = [(_VERSION, _value(version)), (_METHOD, _value(method))]
    name = mirrored(method, params)[2]
    if name is not None:
        headers.append((_NAME, _value(name)))
    return headers


def refuse_repeated(repeated: frozenset[bytes]) -> None:
    """Refuse a request that has one of the headers every request has twice."""
    for header, title in _TITLES.items():
        if header in repeated:
            raise _mismatch(f"expected one {title}, got several")


def mirrored(method: str, params: Params) -> Mirrored:
    """Return all of a request that the headers of every request must say, too."""
    key = _NAMED.get(method)
    return method, params.said, None if key is None else params.find_text(key)


def check_mirrors(
    headers: Mapping[bytes, bytes], repeated: frozenset[bytes], method: str, params: Params
) -> None:
    """Refuse a request whose headers do not say what its body says."""
    if repeated:
        refuse_repeated(repeated)
    _expect(headers, _VERSION, _text(params.meta.get(_REVISION)))
    _expect(headers, _METHOD, method)
    _expect(headers, _NAME, mirrored(method, params)[2])


def header_params(definition: Raw) -> HeaderMap:
    """Return which arguments of a tool are repeated in headers.

    Raises ValueError, with the reason, if the tool marks one that cannot be: such a tool must not
    be offered over HTTP.
    """
    text = bytes(definition)
    # However the mark is spelled, it is there to the letter, or has one of its letters escaped.
    if b'"x-mcp-header"' not in text and not _escaped(text):
        return ()
    found: dict[bytes, HeaderParam] = {}
    for path, schema in _schemas(_read_schema(definition)):
        if _MARK in schema:
            param = _read_mark(path, schema)
            if param.header in found:
                other = found[param.header].path
                raise ValueError(
                    f"expected another {_MARK!r} at {_place(param.path)} than at {_place(other)}"
                )
            found[param.header] = param
    return tuple(found.values())


def mirror_arguments(mirrored: HeaderMap, arguments: Raw | None) -> list[tuple[bytes, bytes]]:
    """Return the headers that a call of a tool must have for these arguments.

    Raises Invalid params where an object that has to be read has the same key twice.
    """
    return [
        (param.header, _value(text))
        for param, text, _ in _read_arguments(mirrored, arguments)
        if text is not None
    ]


def check_arguments(
    mirrored: HeaderMap,
    arguments: Raw | None,
    headers: Mapping[bytes, bytes],
    repeated: frozenset[bytes],
) -> None:
    """Refuse a call whose headers do not say what its arguments say."""
    for param, expected, is_number in _read_arguments(mirrored, arguments):
        title, place = param.header.decode(), _place(param.path)
        raw = headers.get(param.header)
        if param.header in repeated:
            raise _mismatch(f"expected one {title}, got several")
        if expected is None:
            if raw is not None:
                raise _mismatch(f"expected no {title} without the argument {place}, got one")
            continue
        if raw is None:
            raise _mismatch(f"expected {title} with the argument {place}, got none")
        try:
            found = decode_value(raw)
        except ValueError:
            raise _mismatch(f"expected text or base64 as {title}, got neither") from None
        if (_shorten(found) if is_number else found) != expected:
            raise _mismatch(f"expected the argument {place} as {title}, got another value")


@lru_cache(1024)
def _value(text: str) -> bytes:
    return encode_value(text).encode()


def _plain(raw: str | bytes) -> str:
    text = (raw.decode("latin-1") if isinstance(raw, bytes) else raw).strip(_BLANK)
    if not _readable(text):
        raise ValueError("expected printable ASCII")
    return text


def _text(raw: Raw | None) -> str | None:
    return from_raw(raw, str) if raw is not None and first_byte(raw) == ord('"') else None


def _expect(headers: Mapping[bytes, bytes], header: bytes, expected: str | None) -> None:
    if expected is None:
        return
    raw = headers.get(header)
    if raw is not None and raw == expected.encode() and not raw.startswith(_MARKER):
        return  # as nearly always
    wanted = f"expected {_show(expected)} as {_TITLES[header]}"
    if raw is None:
        raise _mismatch(f"{wanted}, got none")
    try:
        found = decode_value(raw) if header == _NAME else _plain(raw)
    except ValueError:
        # Shown as it came: there is nothing else to show.
        raise _mismatch(f"{wanted}, got {_show(raw.decode('latin-1'))}") from None
    if found != expected:
        raise _mismatch(f"{wanted}, got {_show(found)}")


def _mismatch(detail: str) -> RpcError:
    return RpcError(HEADER_MISMATCH, f"Header mismatch: {detail}")


def _show(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def _place(path: Path) -> str:
    return _show(".".join(path))


def _read_schema(definition: Raw) -> object:
    schema = members(definition).get("inputSchema")
    if schema is None:
        return None
    try:
        # Numbers are skipped: nobody looks at them, and some cannot be converted.
        return json.loads(bytes(schema), parse_int=_skip, parse_float=_skip)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _skip(_: str) -> None:
    """Stand in for a number."""


def _schemas(root: object) -> Iterator[tuple[Path | None, dict[str, object]]]:
    """Yield every schema there is, those that lie less deep first; references are not followed."""
    waiting: deque[_Node] = deque([((), root)])
    while waiting:
        path, node = waiting.popleft()
        if isinstance(node, dict):
            schema = cast("dict[str, object]", node)
            yield path, schema
            waiting.extend(_below(path, schema))


def _below(path: Path | None, schema: dict[str, object]) -> Iterator[_Node]:
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            # A path has a limit, or a deep and wide schema could make us write long ones for ever.
            here = path if path is not None and len(path) < MAX_DEPTH else None
            for name, node in cast("dict[str, object]", value).items():
                yield None if here is None else (*here, name), node
        elif key in _MAPS and isinstance(value, dict):
            for node in cast("dict[str, object]", value).values():
                yield None, node
        elif key in _SCHEMAS:
            for node in cast("list[object]", value) if isinstance(value, list) else [value]:
                yield None, node


def _read_mark(path: Path | None, schema: dict[str, object]) -> HeaderParam:
    name, kind = schema[_MARK], schema.get("type")
    if not path:
        raise ValueError(
            f"expected {_MARK!r} only where up to {MAX_DEPTH} 'properties' lead, and nothing else"
        )
    if not isinstance(name, str) or not _token(name):
        raise ValueError(f"expected a token of RFC 9110 as {_MARK!r} at {_place(path)}")
    if kind not in _KINDS:
        raise ValueError(f"expected one of {', '.join(_KINDS)} as 'type' at {_place(path)}")
    return HeaderParam(_PARAM + name.lower().encode(), path, str(kind))


def _read_arguments(
    mirrored: HeaderMap, arguments: Raw | None
) -> Iterator[tuple[HeaderParam, str | None, bool]]:
    """Yield what a header must say, None where there must be none; and whether it is a number."""
    opened: dict[Path, dict[str, Raw]] = {}
    for param in mirrored:
        raw = _open(param.path[:-1], arguments, opened).get(param.path[-1])
        # Neither null nor what is no scalar can be said in a header; the tool judges the latter.
        if raw is None or first_byte(raw) in b"n{[":
            yield param, None, False
        elif first_byte(raw) == ord('"'):
            yield param, from_raw(raw, str), False
        else:
            is_number = param.kind == "integer"
            text = bytes(raw).decode()
            yield param, _shorten(text) if is_number else text, is_number


def _open(path: Path, arguments: Raw | None, opened: dict[Path, dict[str, Raw]]) -> dict[str, Raw]:
    """Return the members of the object at `path`, none if there is no such object."""
    if path not in opened:
        raw = _open(path[:-1], arguments, opened).get(path[-1]) if path else arguments
        if raw is None or first_byte(raw) != ord("{"):
            return opened.setdefault(path, {})
        try:
            opened[path] = members(raw)
        except ValueError as why:
            raise RpcError.invalid_params(f"{why} in 'arguments'") from None
    return opened[path]


def _shorten(text: str) -> str:
    """Write an integer as short as can be: 42 for 42.0, 0 for -0; all else stays as it is."""
    found = _integral(text)
    if found is None:
        return text
    digits = found[2].lstrip("0")
    return f"{found[1]}{digits}" if digits else "0"
