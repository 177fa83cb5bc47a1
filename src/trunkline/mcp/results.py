"""Results: whether the answer of a server is a result of its method.

    tools/call     ──> an object with an array `content`, or with `structuredContent`
    prompts/get    ──> an object with an array `messages`
    resources/read ──> an object with an array `contents`
    other methods  ──> an object

Nothing deeper is checked. A result that asks for input, or states another type, is checked where it
is read.
"""

from msgspec import Struct

from trunkline.jsonrpc import INTERNAL_ERROR, UNSET, Raw, RpcError, from_raw
from trunkline.jsonrpc.raw_json import UnsetType, first_byte
from trunkline.mcp.methods import CONTENT, CONTENTS, MESSAGES, Method, ResultShape

_OBJECT, _ARRAY = ord("{"), ord("[")

# The member that must be an array
_ARRAY_MEMBERS = {CONTENT: "content", CONTENTS: "contents", MESSAGES: "messages"}


def _prefixes(member: str) -> tuple[bytes, ...]:
    """Return how nearly all results with this member begin."""
    compact = f'{{"{member}":[', f'{{"resultType":"complete","{member}":['
    return tuple(each.encode() for each in (*compact, f'{{"{member}": ['))


_USUAL_PREFIXES: dict[ResultShape, tuple[bytes, ...]] = {
    shape: _prefixes(_ARRAY_MEMBERS[shape]) if shape in _ARRAY_MEMBERS else (b"{",)
    for shape in ResultShape
}
_MAX_PREFIX_LENGTH = max(len(each) for prefixes in _USUAL_PREFIXES.values() for each in prefixes)


class _CheckedMembers(Struct):
    resultType: Raw | UnsetType = UNSET  # noqa: N815  its name on the wire
    content: Raw | UnsetType = UNSET
    contents: Raw | UnsetType = UNSET
    messages: Raw | UnsetType = UNSET
    structuredContent: Raw | UnsetType = UNSET  # noqa: N815  its name on the wire


class MalformedResult(RpcError):
    """A response of a server has a result that is none of its method.

    The server is up, unlike with a MalformedResponse: its tool may be the only thing that is wrong.
    """


def malformed_result(reason: str) -> MalformedResult:
    """Return the error for a result that cannot be used."""
    return MalformedResult(INTERNAL_ERROR, f"the result was malformed: {reason}")


def has_usual_start(method: Method, result: Raw) -> bool:
    """Return whether the start of a result proves that `check_result` accepts it."""
    # Runs for every call: nearly all results have the member first, and need no parsing.
    start = bytes(memoryview(result)[:_MAX_PREFIX_LENGTH])
    return start.startswith(_USUAL_PREFIXES[method.result])


def check_result(method: Method, result: Raw) -> None:
    """Raise MalformedResult for what cannot be a result of a method."""
    if has_usual_start(method, result):
        return
    if first_byte(result) != _OBJECT:
        raise malformed_result("expected an object")
    member = _ARRAY_MEMBERS[method.result]  # of other methods, any object has the usual start
    found = from_raw(result, _CheckedMembers)
    value: Raw | UnsetType = getattr(found, member)
    if found.resultType not in (UNSET, Raw(b'"complete"')):
        return
    # Most clients read a tool's result that has only structured content.
    if value is UNSET and method.result is CONTENT and found.structuredContent is not UNSET:
        return
    if value is UNSET or first_byte(value) != _ARRAY:
        raise malformed_result(f"expected an array as {member!r}")
