"""The params of one message: reads and edits one level, and the `_meta` in it.

It never looks into `arguments` or any other member: members that are not read stay bytes.

Rules upheld here:
1. The server reads what was checked here: duplicate keys in params or in `_meta` are rejected.
2. Members that are not edited keep their bytes, unknown ones included.
3. A MetaObject never changes. Requests with equal `_meta` share one, and editing creates another.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

from trunkline.jsonrpc import UNSET, DuplicateKey, Id, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.jsonrpc.raw_json import OBJECT_START, encode_json, first_byte, first_byte_tuple

META_PREFIX = "io.modelcontextprotocol/"
PROGRESS_TOKEN_KEY = "progressToken"  # noqa: S105  a name, not a secret

VERSION_KEY = META_PREFIX + "protocolVersion"
CAPABILITIES_KEY = META_PREFIX + "clientCapabilities"
CLIENT_INFO_KEY = META_PREFIX + "clientInfo"
LOG_LEVEL_KEY = META_PREFIX + "logLevel"

# The sender of a stateless request, from its envelope. A session-protocol server must not see it.
ENVELOPE_KEYS = frozenset((VERSION_KEY, CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY))

# The size of the largest `_meta`, in bytes, whose parsed form is cached.
#
# The parsed form of many short members takes fifteen times as much memory as the bytes.
MAX_CACHED_META_BYTES = 1024

# Stands for an absent member. A member that is null is Raw, so None would be ambiguous.
_ABSENT: Any = None


class MetaObject(msgspec.Struct, eq=False):
    """The content of a `_meta`. Clients repeat the same one, or nearly so, in every request."""

    raw: Raw | None
    """The bytes; None if there is no `_meta`."""
    members: Mapping[str, Raw]
    caller: object = None
    """The caller that was last read from it, a cache of `negotiation.read_envelope`."""
    last_removal: "tuple[frozenset[str], MetaObject] | None" = None
    """The keys that were last removed, and the result. A cache of `without`."""

    def without(self, keys: frozenset[str]) -> "MetaObject":
        """Return a copy without some members, or itself if it has none of them."""
        if self.last_removal is not None and self.last_removal[0] is keys:
            return self.last_removal[1]
        if keys.isdisjoint(self.members):
            return self
        remainder = make_meta({key: raw for key, raw in self.members.items() if key not in keys})
        self.last_removal = keys, remainder
        return remainder

    @property
    def is_cacheable(self) -> bool:
        """Whether it is small enough to be cached."""
        return self.raw is None or len(self.raw) <= MAX_CACHED_META_BYTES


_NO_META = MetaObject(None, {})


def make_meta(members: Mapping[str, Raw]) -> MetaObject:
    """Return a `_meta` with these members; without members, there is no `_meta`."""
    return MetaObject(to_raw(members), members) if members else _NO_META


def read_meta(raw: Raw | None) -> MetaObject:
    """Return the content of a `_meta`; raises Invalid params if it cannot be read."""
    if raw is None:
        return _NO_META
    if len(raw) <= MAX_CACHED_META_BYTES:
        return _read_meta_cached(bytes(raw))
    return MetaObject(raw, _parse_object(raw, "_meta"))


@lru_cache(256)
def _read_meta_cached(text: bytes) -> MetaObject:
    raw = Raw(text)
    return MetaObject(raw, _parse_object(raw, "_meta"))


class _CallParams(msgspec.Struct, gc=False, omit_defaults=True):
    """The params of nearly every call. A Struct decodes faster than a dict of raw members."""

    name: str = _ABSENT
    arguments: Raw = _ABSENT
    meta: Raw = msgspec.field(name="_meta", default=_ABSENT)


_decode_call_params = msgspec.json.Decoder(_CallParams).decode

# The bytes that a compact encoding needs in addition to the values.
_NAME_BYTES = len('{"name":""}')
_ARGUMENTS_BYTES = len(',"arguments":')
_META_BYTES = len(',"_meta":')

# Fewer spare bytes than this cannot hold another member.
_MIN_MEMBER_BYTES = len('"":0,')

_MAX_CALL_OVERHEAD = _NAME_BYTES + _ARGUMENTS_BYTES + _MIN_MEMBER_BYTES


class Params:
    """The params of one request or notification, in a form that can be edited."""

    __slots__ = ("_call_params", "_members", "_meta_object", "_raw", "has_only_name_and_arguments")

    def __init__(self, raw: object) -> None:
        """Parse one level; raises Invalid params unless it is an object without duplicate keys."""
        self._meta_object: MetaObject | None = None
        if type(raw) is Raw:
            # The bytes that were read, until the first edit.
            self._raw: Raw | None = raw
            try:
                call_params: Any = _decode_call_params(raw)
                # Set if there are only a name, arguments and `_meta`. Otherwise `_members` holds
                # everything.
                self._call_params: _CallParams | None = call_params
                name, arguments = call_params.name, call_params.arguments
                if arguments is not None and name is not None:
                    spare = len(raw) - len(name) - len(arguments)
                    if spare < _MAX_CALL_OVERHEAD:  # leaves no room for a `_meta` either
                        self.has_only_name_and_arguments = True
                        """Whether there is nothing but a name and arguments, as in most calls."""
                        return
                    if (
                        call_params.meta is not None
                        and spare - len(call_params.meta) < _MAX_CALL_OVERHEAD + _META_BYTES
                    ):
                        self.has_only_name_and_arguments = False
                        return
                self.has_only_name_and_arguments = call_params.meta is None
                if _has_no_other_members(raw, call_params):
                    return
            except (msgspec.DecodeError, RecursionError):
                pass  # fall through and read the members one by one
        else:
            self._raw = None
        self._call_params, self.has_only_name_and_arguments = None, False
        self._members = {} if raw is UNSET else _parse_object(raw, "params")

    @property
    def meta_object(self) -> MetaObject:
        """The content of `_meta`, empty if there is none."""
        meta = self._meta_object
        if meta is None:
            meta = self._meta_object = read_meta(self.get("_meta"))
        return meta

    @property
    def meta(self) -> Mapping[str, Raw]:
        """The members of `_meta`, empty if there is none."""
        return self.meta_object.members

    @property
    def has_only_standard_members(self) -> bool:
        """Whether there is a name, and no other member but arguments and `_meta`."""
        return self._call_params is not None

    def require_text(self, key: str) -> str:
        """Return a member that must be a string; raises Invalid params otherwise."""
        if key == "name" and self._call_params is not None:
            return self._call_params.name
        raw = self.get(key)
        if raw is None:
            raise RpcError.invalid_params(f"missing {key!r}", {"field": key})
        value = decode_value(raw)
        if not isinstance(value, str):
            raise RpcError.invalid_params(f"expected a string as {key!r}", {"field": key})
        return value

    def get_text(self, key: str) -> str | None:
        """Return a member if it is a string, or None if it is absent or anything else."""
        if key == "name" and self._call_params is not None:
            return self._call_params.name
        raw = self.get(key)
        return from_raw(raw, str) if raw is not None and first_byte(raw) == ord('"') else None

    def name_and_arguments(self) -> tuple[str, Raw | None]:
        """Return the name and the arguments of a call; raises Invalid params."""
        call_params = self._call_params
        if call_params is None:
            name, arguments = self.require_text("name"), self.get("arguments")
        else:
            name, arguments = call_params.name, call_params.arguments
        if arguments is not None and first_byte_tuple(arguments) != OBJECT_START:
            raise RpcError.invalid_params("expected an object as 'arguments'")
        return name, arguments

    def get(self, key: str) -> Raw | None:
        """Return the bytes of a member, or None if it is absent."""
        call_params = self._call_params
        if call_params is None:
            return self._members.get(key)
        if key == "arguments":
            return call_params.arguments
        if key == "_meta":
            return call_params.meta
        return to_raw(call_params.name) if key == "name" else None

    @property
    def progress_token(self) -> Id:
        """The sender's progress token, or None if it wants no progress notifications."""
        raw = self.meta_object.members.get(PROGRESS_TOKEN_KEY)
        if raw is None:
            return None
        token = decode_value(raw)
        if isinstance(token, bool) or not isinstance(token, int | str | None):
            raise RpcError.invalid_params("expected a string or an integer as 'progressToken'")
        return token

    def put(self, key: str, value: object) -> None:
        """Set a member."""
        if key == "name" and self._call_params is not None and type(value) is str:
            self._call_params.name = value
        else:
            self._expand_members()[key] = to_raw(value)
            self.has_only_name_and_arguments = False
            if key == "_meta":
                self._meta_object = None
        self._raw = None

    def drop(self, key: str) -> None:
        """Remove a member."""
        if self.get(key) is not None:
            del self._expand_members()[key]
            self._raw = None

    def put_meta(self, key: str, value: object) -> None:
        """Set a member of `_meta`."""
        self.set_meta(make_meta({**self.meta_object.members, key: to_raw(value)}))

    def put_progress_token(self, token: int) -> None:
        """Set the progress token. Other members of `_meta` keep their bytes."""
        call_params = self._call_params
        raw = self._members.get("_meta") if call_params is None else call_params.meta
        # Every call gets a token: `_meta` is not encoded again, and read again only if it is used.
        if raw is None:
            meta = Raw(b'{"progressToken":%d}' % token)
        elif (members := self.meta_object.members) and PROGRESS_TOKEN_KEY not in members:
            meta = Raw(b'{"progressToken":%d,%b' % (token, bytes(raw)[1:]))
        else:
            self.put_meta(PROGRESS_TOKEN_KEY, token)
            return
        if call_params is None:
            self._members["_meta"] = meta
        else:
            call_params.meta = meta
        self._meta_object, self._raw, self.has_only_name_and_arguments = None, None, False

    def drop_meta(self, keys: frozenset[str]) -> None:
        """Remove members of `_meta`."""
        meta = self.meta_object
        remainder = meta.without(keys)
        if remainder is not meta:
            self.set_meta(remainder)

    def set_meta(self, meta: MetaObject) -> None:
        """Replace `_meta`."""
        self._meta_object, self._raw, self.has_only_name_and_arguments = meta, None, False
        if self._call_params is not None:
            self.has_only_name_and_arguments = meta.raw is None
            self._call_params.meta = _ABSENT if meta.raw is None else meta.raw
        elif meta.raw is None:
            self._members.pop("_meta", None)
        else:
            self._members["_meta"] = meta.raw

    def encode(self) -> Raw:
        """Return the params as JSON, with all edits."""
        if self._raw is not None:
            return self._raw
        return Raw(encode_json(self._members if self._call_params is None else self._call_params))

    def _expand_members(self) -> dict[str, Raw]:
        """Switch to the general form with one entry per member, which few calls need."""
        call_params = self._call_params
        if call_params is not None:
            self._call_params = None
            self._members = {"name": to_raw(call_params.name)}
            if call_params.arguments is not _ABSENT:
                self._members["arguments"] = call_params.arguments
            if call_params.meta is not _ABSENT:
                self._members["_meta"] = call_params.meta
        return self._members


def _has_no_other_members(raw: Raw, call_params: _CallParams) -> bool:
    """Return whether the lengths prove that there are no other members, and no duplicates."""
    if call_params.name is _ABSENT:
        return False
    spare = len(raw) - len(call_params.name) - _NAME_BYTES
    if call_params.arguments is not _ABSENT:
        spare -= len(call_params.arguments) + _ARGUMENTS_BYTES
    if call_params.meta is not _ABSENT:
        spare -= len(call_params.meta) + _META_BYTES
    return spare < _MIN_MEMBER_BYTES


_read_any = msgspec.json.Decoder(object).decode


def decode_value(raw: Raw) -> object:
    """Decode `raw`. A value that cannot be represented, such as a huge number, becomes NaN."""
    try:
        return _read_any(raw)
    except (ValueError, RecursionError):
        return math.nan


def try_members(raw: Raw) -> dict[str, Raw] | None:
    """Return the members of an object, or None if `raw` is malformed or has duplicate keys."""
    try:
        return read_members(raw)
    except ValueError:
        return None


def as_object(value: object) -> dict[str, Any]:
    """Return a decoded object, or an empty one in place of any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _parse_object(raw: object, place: str) -> dict[str, Raw]:
    try:
        return read_members(raw if type(raw) is Raw else to_raw(raw))
    except DuplicateKey as error:
        raise RpcError.invalid_params(f"{error} in {place}") from None
    except ValueError:
        raise RpcError.invalid_params(f"expected an object as {place}") from None
