"""HTTP headers of MCP: since 2026-07-28 they repeat parts of the body.

    version, method, params.name | uri | taskId     <──>  MCP-Protocol-Version, Mcp-Method, Mcp-Name
    arguments whose schema has "x-mcp-header": "Region"   <──>  Mcp-Param-Region

It does not validate the body. A name that is missing or not a string is not compared, because the
code that reads it reports the error.

Rules upheld here:
1. Every text is encoded as printable ASCII without surrounding white space, so that nothing can
   break out of a header, and decodes to exactly that text.
2. A repeated header is rejected: two readers could believe different copies.
3. Decoded values must be equal. Integers are compared as numbers of any length.
4. Errors show headers and names, which may be logged, but never arguments.
"""

import base64
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast

from msgspec import Struct

from trunkline.jsonrpc import Raw, RpcError, from_raw, read_members
from trunkline.jsonrpc.raw_json import first_byte
from trunkline.mcp.errors import HEADER_MISMATCH
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.methods import CLIENT_REQUESTS, TASK_REQUESTS
from trunkline.mcp.negotiation import require_envelope
from trunkline.mcp.params import VERSION_KEY, MetaObject, Params
from trunkline.mcp.versions import Revision

# The depth limit, in objects, of an argument that is repeated in a header.
MAX_HEADER_PARAM_DEPTH = 32

# For how many tools of one server `header_notes` says why they are left out.
MAX_HEADER_NOTES = 100

_VERSION_HEADER = b"mcp-protocol-version"
_METHOD_HEADER = b"mcp-method"
_NAME_HEADER = b"mcp-name"
_PARAM_HEADER_PREFIX = b"mcp-param-"

_HEADER_TITLES = {
    _VERSION_HEADER: "MCP-Protocol-Version",
    _METHOD_HEADER: "Mcp-Method",
    _NAME_HEADER: "Mcp-Name",
}

# The longest name, in characters, that is kept for comparison.
_MAX_KEPT_NAME_LENGTH = 256

_BASE64_PREFIX, _BASE64_SUFFIX = "=?base64?", "?="
_WHITE_SPACE = " \t"
_BASE64_PREFIX_BYTES = _BASE64_PREFIX.encode()

_readable = re.compile(r"[\t -~]*").fullmatch
_token = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_integral = re.compile(r"(-?)([0-9]+)(?:\.0+)?").fullmatch
_escaped = re.compile(rb"\\u00[267]").search

_HEADER_KEYWORD = "x-mcp-header"
_HEADER_TYPES = ("integer", "string", "boolean")

# The keywords of JSON Schema 2020-12 and draft 7, except `properties`, that contain schemas. All
# other keywords contain data: "x-mcp-header" in a `default` or an `enum` is no annotation.
_SCHEMA_MAP_KEYWORDS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"}
)
_SCHEMA_KEYWORDS = frozenset(
    {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}
    | {"additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "then", "else"}
)

Path: TypeAlias = tuple[str, ...]
# A schema, and its path if only `properties` lead there; otherwise None.
_SchemaNode: TypeAlias = tuple[Path | None, object]


class HeaderParam(NamedTuple):
    """One argument of a tool that is repeated in a header."""

    header: bytes
    """The header's name in lower case, such as b"mcp-param-region"."""
    path: Path
    kind: str
    """The type in the schema: integer, string or boolean."""


# The method, the `_meta` with the revision, and the name; None where the body has none.
HeaderSource: TypeAlias = tuple[str, MetaObject | None, str | None]

# All arguments of a tool that are repeated in headers. Most tools have none.
HeaderParams: TypeAlias = tuple[HeaderParam, ...]


class HeaderCheck(Struct, eq=False):
    """Compares the headers of HTTP requests with their bodies.

    Header names are in lower case. Requests with identical headers share one HeaderCheck.
    """

    headers: Mapping[bytes, bytes]
    repeated: frozenset[bytes]
    last_match: HeaderSource | None = None
    """The body that last matched. A body with the same values is not compared again."""

    def check_body(self, method: str, params: Params) -> None:
        """Reject a request with contradicting or repeated headers, or without an envelope."""
        body = header_source(method, params)
        if body != self.last_match:
            reject_repeated_headers(self.repeated)
            require_envelope(params)
            check_request_headers(self.headers, self.repeated, method, params)
            self.last_match = _cacheable_source(*body)

    def check_arguments(self, declared: HeaderParams, arguments: Raw | None) -> None:
        """Reject a call whose headers contradict its arguments."""
        check_argument_headers(declared, arguments, self.headers, self.repeated)


def _cacheable_source(
    method: str, meta_object: MetaObject | None, name: str | None
) -> HeaderSource:
    """Return the values to remember, without long ones.

    None is safe: a body without the value has nothing to compare.
    """
    if meta_object is not None and not meta_object.is_cacheable:
        meta_object = None
    if name is not None and len(name) > _MAX_KEPT_NAME_LENGTH:
        name = None
    return method, meta_object, name


def encode_header_value(text: str) -> str:
    """Return the header value for `text`: unchanged if possible, otherwise marked base64."""
    plain = text.isascii() and text.isprintable() and text == text.strip(_WHITE_SPACE)
    if plain and not (text.startswith(_BASE64_PREFIX) and text.endswith(_BASE64_SUFFIX)):
        return text
    return f"{_BASE64_PREFIX}{base64.b64encode(text.encode()).decode()}{_BASE64_SUFFIX}"


def decode_header_value(raw: str | bytes) -> str:
    """Return the text of a header value; raises ValueError unless it is canonically encoded."""
    text = _printable(raw)
    if not (text.startswith(_BASE64_PREFIX) and text.endswith(_BASE64_SUFFIX, len(_BASE64_PREFIX))):
        return text
    coded = text[len(_BASE64_PREFIX) : -len(_BASE64_SUFFIX)]
    with suppress(ValueError):
        found = base64.b64decode(coded, validate=True).decode()
        # Base64 must be canonical: the decoder ignores the unused bits of the last letter.
        if base64.b64encode(found.encode()).decode() == coded:
            return found
    raise ValueError("expected canonical base64 of UTF-8")


def request_headers(revision: Revision, method: str, params: Params) -> list[tuple[bytes, bytes]]:
    """Return the headers that a request to a server of `revision` must have."""
    headers = [
        (_VERSION_HEADER, _encode_cached(revision.date)),
        (_METHOD_HEADER, _encode_cached(method)),
    ]
    name = header_source(method, params)[2]
    if name is not None:
        headers.append((_NAME_HEADER, _encode_cached(name)))
    return headers


def reject_repeated_headers(repeated: frozenset[bytes]) -> None:
    """Reject a request that contains one of the standard headers twice."""
    for header, title in _HEADER_TITLES.items():
        if header in repeated:
            raise _mismatch(f"expected one {title}, got several")


def header_source(method: str, params: Params) -> HeaderSource:
    """Return what the standard headers of a request must repeat from its body."""
    row = CLIENT_REQUESTS.get(method) or TASK_REQUESTS.get(method)
    if row is None or row.header_member is None:
        return method, params.meta_object, None
    return method, params.meta_object, params.get_text(row.header_member)


def check_request_headers(
    headers: Mapping[bytes, bytes], repeated: frozenset[bytes], method: str, params: Params
) -> None:
    """Reject a request whose standard headers contradict its body."""
    if repeated:
        reject_repeated_headers(repeated)
    _check_header(headers, _VERSION_HEADER, _string_or_none(params.meta.get(VERSION_KEY)))
    _check_header(headers, _METHOD_HEADER, method)
    _check_header(headers, _NAME_HEADER, header_source(method, params)[2])


def header_params(definition: Raw) -> HeaderParams:
    """Return the arguments of a tool that are repeated in headers.

    Raises ValueError, with the reason, for an invalid "x-mcp-header". Such a tool must not be
    listed over HTTP.
    """
    text = bytes(definition)
    # The keyword is spelled literally, or with at least one escaped letter.
    if b'"x-mcp-header"' not in text and not _escaped(text):
        return ()
    found: dict[bytes, HeaderParam] = {}
    for path, schema in _schemas(_read_schema(definition)):
        if _HEADER_KEYWORD in schema:
            param = _read_header_param(path, schema)
            if param.header in found:
                other = found[param.header].path
                raise ValueError(
                    f"expected different {_HEADER_KEYWORD!r} at"
                    f" {_quote_path(other)} and {_quote_path(param.path)}"
                )
            found[param.header] = param
    return tuple(found.values())


def header_notes(features: Iterable[Feature]) -> list[str]:
    """Return a note for each tool that stateless clients are not offered, with the reason.

    At most `MAX_HEADER_NOTES` are returned.
    """
    notes: list[str] = []
    for feature in features:
        if feature.kind is FeatureKind.TOOL and len(notes) < MAX_HEADER_NOTES:
            try:
                header_params(feature.definition)
            except ValueError as error:
                notes.append(f"tools: {feature.key!r} for stateless clients: {error}")
    return notes


def argument_headers(declared: HeaderParams, arguments: Raw | None) -> list[tuple[bytes, bytes]]:
    """Return the headers that a call must have for these arguments.

    Raises Invalid params if an object on the way to an argument has duplicate keys.
    """
    return [
        (param.header, _encode_cached(text))
        for param, text, _ in _read_arguments(declared, arguments)
        if text is not None
    ]


def check_argument_headers(
    declared: HeaderParams,
    arguments: Raw | None,
    headers: Mapping[bytes, bytes],
    repeated: frozenset[bytes],
) -> None:
    """Reject a call whose headers contradict its arguments."""
    for param, expected, is_number in _read_arguments(declared, arguments):
        title, place = param.header.decode(), _quote_path(param.path)
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
            found = decode_header_value(raw)
        except ValueError:
            raise _mismatch(f"expected text or base64 as {title}, got neither") from None
        if (_canonical_integer(found) if is_number else found) != expected:
            raise _mismatch(f"expected the argument {place} as {title}, got another value")


@lru_cache(1024)
def _encode_cached(text: str) -> bytes:
    return encode_header_value(text).encode()


def _printable(raw: str | bytes) -> str:
    text = (raw.decode("latin-1") if isinstance(raw, bytes) else raw).strip(_WHITE_SPACE)
    if not _readable(text):
        raise ValueError("expected printable ASCII")
    return text


def _string_or_none(raw: Raw | None) -> str | None:
    return from_raw(raw, str) if raw is not None and first_byte(raw) == ord('"') else None


def _check_header(headers: Mapping[bytes, bytes], header: bytes, expected: str | None) -> None:
    if expected is None:
        return
    raw = headers.get(header)
    if raw is not None and raw == expected.encode() and not raw.startswith(_BASE64_PREFIX_BYTES):
        return  # fast path: nearly always equal
    wanted = f"expected {_quote(expected)} as {_HEADER_TITLES[header]}"
    if raw is None:
        raise _mismatch(f"{wanted}, got none")
    try:
        found = decode_header_value(raw) if header == _NAME_HEADER else _printable(raw)
    except ValueError:
        # Undecodable values are shown as received.
        raise _mismatch(f"{wanted}, got {_quote(raw.decode('latin-1'))}") from None
    if found != expected:
        raise _mismatch(f"{wanted}, got {_quote(found)}")


def _mismatch(detail: str) -> RpcError:
    return RpcError(HEADER_MISMATCH, f"Header mismatch: {detail}")


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def _quote_path(path: Path) -> str:
    return _quote(".".join(path))


def _read_schema(definition: Raw) -> object:
    schema = read_members(definition).get("inputSchema")
    if schema is None:
        return None
    try:
        # Numbers are skipped: they are not needed, and some cannot be converted.
        return json.loads(bytes(schema), parse_int=_skip_number, parse_float=_skip_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _skip_number(_: str) -> None:
    """Replace a number, whose value is not needed."""


def _schemas(root: object) -> Iterator[tuple[Path | None, dict[str, object]]]:
    """Yield every subschema, breadth first. References are not followed."""
    waiting: deque[_SchemaNode] = deque([((), root)])
    while waiting:
        path, node = waiting.popleft()
        if isinstance(node, dict):
            schema = cast("dict[str, object]", node)
            yield path, schema
            waiting.extend(_subschemas(path, schema))


def _subschemas(path: Path | None, schema: dict[str, object]) -> Iterator[_SchemaNode]:
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            # The limit keeps a deep and wide schema from producing endlessly long paths.
            here = path if path is not None and len(path) < MAX_HEADER_PARAM_DEPTH else None
            for name, node in cast("dict[str, object]", value).items():
                yield None if here is None else (*here, name), node
        elif key in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            for node in cast("dict[str, object]", value).values():
                yield None, node
        elif key in _SCHEMA_KEYWORDS:
            for node in cast("list[object]", value) if isinstance(value, list) else [value]:
                yield None, node


def _read_header_param(path: Path | None, schema: dict[str, object]) -> HeaderParam:
    name, kind = schema[_HEADER_KEYWORD], schema.get("type")
    if not path:
        raise ValueError(
            f"expected {_HEADER_KEYWORD!r} only under up to {MAX_HEADER_PARAM_DEPTH} 'properties'"
        )
    if not isinstance(name, str) or not _token(name):
        raise ValueError(
            f"expected a token of RFC 9110 as {_HEADER_KEYWORD!r} at {_quote_path(path)}"
        )
    if kind not in _HEADER_TYPES:
        raise ValueError(
            f"expected one of {', '.join(_HEADER_TYPES)} as 'type' at {_quote_path(path)}"
        )
    return HeaderParam(_PARAM_HEADER_PREFIX + name.lower().encode(), path, str(kind))


def _read_arguments(
    declared: HeaderParams, arguments: Raw | None
) -> Iterator[tuple[HeaderParam, str | None, bool]]:
    """Yield each header's expected value (None: no header), and whether it is an integer."""
    opened: dict[Path, dict[str, Raw]] = {}
    for param in declared:
        raw = _members_at(param.path[:-1], arguments, opened).get(param.path[-1])
        # Headers cannot express null, objects or arrays. The tool itself checks the type.
        if raw is None or first_byte(raw) in b"n{[":
            yield param, None, False
        elif first_byte(raw) == ord('"'):
            yield param, from_raw(raw, str), False
        else:
            is_number = param.kind == "integer"
            text = bytes(raw).decode()
            yield param, _canonical_integer(text) if is_number else text, is_number


def _members_at(
    path: Path, arguments: Raw | None, opened: dict[Path, dict[str, Raw]]
) -> dict[str, Raw]:
    """Return the members of the object at `path`, empty if there is no such object."""
    if path not in opened:
        raw = _members_at(path[:-1], arguments, opened).get(path[-1]) if path else arguments
        if raw is None or first_byte(raw) != ord("{"):
            return opened.setdefault(path, {})
        try:
            opened[path] = read_members(raw)
        except ValueError as error:
            raise RpcError.invalid_params(f"{error} in 'arguments'") from None
    return opened[path]


def _canonical_integer(text: str) -> str:
    """Return the canonical spelling of an integer: 42 for 42.0, 0 for -0; other text unchanged."""
    found = _integral(text)
    if found is None:
        return text
    digits = found[2].lstrip("0")
    return f"{found[1]}{digits}" if digits else "0"
