"""Params, one level deep, and the `_meta` in them: read, edited, and written from what was read.

Refuses to look at `arguments` or any other member: what is not asked for stays the bytes it was.

Rules upheld here:
1. What is read is what is written: a key that occurs twice in params or in `_meta` is refused.
2. Members that nobody edits go out to the byte, unknown ones included.
3. A Meta never changes: those who say the same have the same, and whoever edits has another.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from trunkline.jsonrpc import UNSET, DuplicateKey, Id, Raw, RpcError, from_raw, members, to_raw
from trunkline.jsonrpc.raw import OBJECT, first_byte, opening, write

PREFIX = "io.modelcontextprotocol/"
PROGRESS_TOKEN = "progressToken"  # noqa: S105  a name, not a secret

ENVELOPE_KEYS = frozenset(
    PREFIX + key for key in ("protocolVersion", "clientInfo", "clientCapabilities", "logLevel")
)
"""What a request of the envelope era says about its sender; the other era must not see it."""


LONGEST = 1024
"""The most that a `_meta` may say, in bytes, for it to be remembered as it was read.

What was read of many short members takes fifteen times as much.
"""

_ABSENT: Any = None
"""In place of a member; one that is null is raw, too."""


class Meta(msgspec.Struct, eq=False):
    """What a `_meta` says; a client says the same with every request, or nearly the same."""

    raw: Raw | None
    """All of it; None if there is none."""
    members: Mapping[str, Raw]
    caller: object = None
    """Who says this, as it was last read."""
    left: "tuple[frozenset[str], Meta] | None" = None
    """What was last taken out of it, and what is left then."""

    def without(self, keys: frozenset[str]) -> "Meta":
        """Return what is left without some members; itself, if it has none of them."""
        if self.left is not None and self.left[0] is keys:
            return self.left[1]
        if keys.isdisjoint(self.members):
            return self
        left = write_meta({key: raw for key, raw in self.members.items() if key not in keys})
        self.left = keys, left
        return left

    @property
    def lasting(self) -> bool:
        """Whether it is short enough to be kept."""
        return self.raw is None or len(self.raw) <= LONGEST


_SILENCE = Meta(None, {})


def write_meta(members: Mapping[str, Raw]) -> Meta:
    """Return what says this."""
    # Without anything in it nobody said anything but what was taken out.
    return Meta(to_raw(members), members) if members else _SILENCE


def read_meta(raw: Raw | None) -> Meta:
    """Return what a `_meta` says; raises Invalid params if that cannot be read."""
    if raw is None:
        return _SILENCE
    return _known(bytes(raw)) if len(raw) <= LONGEST else Meta(raw, _object(raw, "_meta"))


@lru_cache(256)
def _known(written: bytes) -> Meta:
    raw = Raw(written)
    return Meta(raw, _object(raw, "_meta"))


class _Named(msgspec.Struct, gc=False, omit_defaults=True):
    """The params of nearly every call, which need not be read as an object of anything."""

    name: str = _ABSENT
    arguments: Raw = _ABSENT
    meta: Raw = msgspec.field(name="_meta", default=_ABSENT)


_read_named = msgspec.json.Decoder(_Named).decode

# What each member of such params takes beside its value, tightly written; the name, the braces.
_NAME, _ARGUMENTS, _META = len('{"name":""}'), len(',"arguments":'), len(',"_meta":')

_SLACK = len('"":0,')
"""Fewer bytes than these hide no other member."""

_ROOM = _NAME + _ARGUMENTS + _SLACK


class Params:
    """The params of one request or notification, ready to be edited."""

    __slots__ = ("_members", "_named", "_raw", "_said", "bare")

    def __init__(self, raw: object) -> None:
        """Read one level; raises Invalid params unless it is an object without repeated keys."""
        self._said: Meta | None = None
        if type(raw) is Raw:
            self._raw: Raw | None = raw
            """What was read, for as long as nothing of it was changed."""
            try:
                named: Any = _read_named(raw)
                self._named: _Named | None = named
                """All of it, if that is a name, arguments, `_meta`; or else `_members` has all."""
                name, arguments = named.name, named.arguments
                if arguments is not None and name is not None:
                    spare = len(raw) - len(name) - len(arguments)
                    if spare < _ROOM:  # for a `_meta`, too
                        self.bare = True
                        """Whether there is nothing but a name and arguments, as in most calls."""
                        return
                    if named.meta is not None and spare - len(named.meta) < _ROOM + _META:
                        self.bare = False
                        return
                self.bare = named.meta is None
                if _is_whole(raw, named):
                    return
            except (msgspec.DecodeError, RecursionError):
                pass  # to be read one by one
        else:
            self._raw = None
        self._named, self.bare = None, False
        self._members = {} if raw is UNSET else _object(raw, "params")

    @property
    def said(self) -> Meta:
        """What `_meta` says; nothing if there is none."""
        said = self._said
        if said is None:
            said = self._said = read_meta(self.get("_meta"))
        return said

    @property
    def meta(self) -> Mapping[str, Raw]:
        """The members of `_meta`; none if there is none."""
        return self.said.members

    @property
    def usual(self) -> bool:
        """Whether there is a name, and nothing but arguments and `_meta` beside it."""
        return self._named is not None

    def text(self, key: str) -> str:
        """Return a member that must be a string; raises Invalid params otherwise."""
        if key == "name" and self._named is not None:
            return self._named.name
        raw = self.get(key)
        if raw is None:
            raise RpcError.invalid_params(f"missing {key!r}", {"field": key})
        value = peek(raw)
        if not isinstance(value, str):
            raise RpcError.invalid_params(f"expected a string as {key!r}", {"field": key})
        return value

    def find_text(self, key: str) -> str | None:
        """Return a member that is a string, None if it is absent or anything else."""
        if key == "name" and self._named is not None:
            return self._named.name
        raw = self.get(key)
        return from_raw(raw, str) if raw is not None and first_byte(raw) == ord('"') else None

    def named(self) -> tuple[str, Raw | None]:
        """Return the name and the arguments of a call; raises Invalid params if they are none."""
        named = self._named
        if named is None:
            name, arguments = self.text("name"), self.get("arguments")
        else:
            name, arguments = named.name, named.arguments
        if arguments is not None and opening(arguments) != OBJECT:
            raise RpcError.invalid_params("expected an object as 'arguments'")
        return name, arguments

    def get(self, key: str) -> Raw | None:
        """Return a member as it is, None if it is absent."""
        named = self._named
        if named is None:
            return self._members.get(key)
        if key == "arguments":
            return named.arguments
        if key == "_meta":
            return named.meta
        return to_raw(named.name) if key == "name" else None

    @property
    def progress_token(self) -> Id:
        """The token under which the sender wants to hear of progress, None if it does not."""
        raw = self.said.members.get(PROGRESS_TOKEN)
        if raw is None:
            return None
        token = peek(raw)
        if isinstance(token, bool) or not isinstance(token, int | str | None):
            raise RpcError.invalid_params("expected a string or an integer as 'progressToken'")
        return token

    def put(self, key: str, value: object) -> None:
        """Set a member."""
        if key == "name" and self._named is not None and type(value) is str:
            self._named.name = value
        else:
            self._all()[key] = to_raw(value)
            self.bare = False
            if key == "_meta":
                self._said = None
        self._raw = None

    def drop(self, key: str) -> None:
        """Remove a member."""
        if self.get(key) is not None:
            del self._all()[key]
            self._raw = None

    def put_meta(self, key: str, value: object) -> None:
        """Set a member of `_meta`."""
        self.say(write_meta({**self.said.members, key: to_raw(value)}))

    def drop_meta(self, keys: frozenset[str]) -> None:
        """Remove members of `_meta`."""
        said = self.said
        left = said.without(keys)
        if left is not said:
            self.say(left)

    def say(self, said: Meta) -> None:
        """Set all of `_meta`."""
        self._said, self._raw, self.bare = said, None, False
        if self._named is not None:
            self.bare = said.raw is None
            self._named.meta = _ABSENT if said.raw is None else said.raw
        elif said.raw is None:
            self._members.pop("_meta", None)
        else:
            self._members["_meta"] = said.raw

    def encode(self) -> Raw:
        """Return the params as they are now."""
        if self._raw is not None:
            return self._raw
        return Raw(write(self._members if self._named is None else self._named))

    def _all(self) -> dict[str, Raw]:
        """Return all members, for whoever changes what few calls have."""
        named = self._named
        if named is not None:
            self._named = None
            self._members = {"name": to_raw(named.name)}
            if named.arguments is not _ABSENT:
                self._members["arguments"] = named.arguments
            if named.meta is not _ABSENT:
                self._members["_meta"] = named.meta
        return self._members


def _is_whole(raw: Raw, named: _Named) -> bool:
    """Tell whether params have a name, and nothing that was not read or is there twice."""
    if named.name is _ABSENT:
        return False
    spare = len(raw) - len(named.name) - _NAME
    if named.arguments is not _ABSENT:
        spare -= len(named.arguments) + _ARGUMENTS
    if named.meta is not _ABSENT:
        spare -= len(named.meta) + _META
    return spare < _SLACK


_read_any = msgspec.json.Decoder(object).decode


def peek(raw: Raw) -> object:
    """Return what `raw` is; NaN for a number that no machine can hold."""
    try:
        return _read_any(raw)
    except (ValueError, RecursionError):
        return math.nan


def _object(raw: object, what: str) -> dict[str, Raw]:
    try:
        return members(raw if type(raw) is Raw else to_raw(raw))
    except DuplicateKey as why:
        raise RpcError.invalid_params(f"{why} in {what}") from None
    except ValueError:
        raise RpcError.invalid_params(f"expected an object as {what}") from None
