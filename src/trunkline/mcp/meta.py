"""Params, one level deep, and the `_meta` in them: read, edited, and written from what was read.

Refuses to look at `arguments` or any other member: what is not asked for stays the bytes it was.

Rules upheld here:
1. What is read is what is written: a key that occurs twice in params or in `_meta` is refused.
2. Members that nobody edits go out to the byte, unknown ones included.
"""

import math
from collections.abc import Mapping

import msgspec

from trunkline.jsonrpc import UNSET, DuplicateKey, Id, Raw, RpcError, members, to_raw

PREFIX = "io.modelcontextprotocol/"
PROGRESS_TOKEN = "progressToken"  # noqa: S105  a name, not a secret

ENVELOPE_KEYS = frozenset(
    PREFIX + key for key in ("protocolVersion", "clientInfo", "clientCapabilities", "logLevel")
)
"""What a request of the envelope era says about its sender; the other era must not see it."""


class Params:
    """The params of one request or notification, ready to be edited."""

    def __init__(self, raw: object) -> None:
        """Read one level; raises Invalid params unless it is an object without repeated keys."""
        self._members = {} if raw is UNSET else _object(raw, "params")
        self._meta: dict[str, Raw] | None = None
        self._raw = raw if type(raw) is Raw else None
        """What was read, for as long as nothing of it was changed."""
        self._meta_changed = False

    @property
    def meta(self) -> Mapping[str, Raw]:
        """The members of `_meta`; none if there is none."""
        return self._read_meta()

    def text(self, key: str) -> str:
        """Return a member that must be a string; raises Invalid params otherwise."""
        raw = self._members.get(key)
        if raw is None:
            raise RpcError.invalid_params(f"missing {key!r}", {"field": key})
        value = peek(raw)
        if not isinstance(value, str):
            raise RpcError.invalid_params(f"expected a string as {key!r}", {"field": key})
        return value

    def get(self, key: str) -> Raw | None:
        """Return a member as it is, None if it is absent."""
        return self._members.get(key)

    def has_any(self, keys: frozenset[str]) -> bool:
        """Tell whether one of these members is there."""
        return not self._members.keys().isdisjoint(keys)

    @property
    def progress_token(self) -> Id:
        """The token under which the sender wants to hear of progress, None if it does not."""
        if "_meta" not in self._members:
            return None
        raw = self._read_meta().get(PROGRESS_TOKEN)
        token = None if raw is None else peek(raw)
        if isinstance(token, bool) or not isinstance(token, int | str | None):
            raise RpcError.invalid_params("expected a string or an integer as 'progressToken'")
        return token

    def put(self, key: str, value: object) -> None:
        """Set a member."""
        self._raw = None
        self._members[key] = to_raw(value)
        if key == "_meta":
            self._meta, self._meta_changed = None, False

    def drop(self, key: str) -> None:
        """Remove a member."""
        if self._members.pop(key, None) is not None:
            self._raw = None

    def put_meta(self, key: str, value: object) -> None:
        """Set a member of `_meta`."""
        self._read_meta()[key] = to_raw(value)
        self._raw, self._meta_changed = None, True

    def drop_meta(self, keys: frozenset[str]) -> None:
        """Remove members of `_meta`."""
        meta = self._read_meta()
        for key in keys & meta.keys():
            del meta[key]
            self._raw, self._meta_changed = None, True

    def encode(self) -> Raw:
        """Return the params as they are now."""
        if self._raw is not None:
            return self._raw
        if self._meta_changed:
            self._meta_changed = False
            if self._meta:
                self._members["_meta"] = to_raw(self._meta)
            else:
                self._members.pop("_meta", None)  # nobody said anything but what was taken out
        return to_raw(self._members)

    def _read_meta(self) -> dict[str, Raw]:
        if self._meta is None:
            raw = self._members.get("_meta")
            self._meta = {} if raw is None else _object(raw, "_meta")
        return self._meta


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
