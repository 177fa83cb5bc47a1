"""Identities: the authenticated Principal, and the Caller with its capabilities.

A Caller is built once per session from `initialize`, or per request from its envelope. Code behind
the endpoints does not ask which.

It does not decide what anyone may do. The policy does that, from roles and subject.

Rule upheld here: principals with equal `id` are the same one, perhaps with different roles.
Sessions, streams, suspended calls and quotas belong to an id. Roles may change between requests.
"""

from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from trunkline.jsonrpc import Notification, Raw, to_raw
from trunkline.mcp.capabilities import capabilities_for_revision, read_client_features
from trunkline.mcp.params import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    VERSION_KEY,
)
from trunkline.mcp.versions import LATEST_STATELESS_REVISION, Revision


class Principal(Struct, frozen=True, gc=False):
    """An authenticated identity."""

    id: str
    """Unique across all authentication modes. Sessions and other state belong to an id."""
    subject: str = ""
    """The name that rules, limits and kill switches use; the id unless set."""
    roles: tuple[str, ...] = ()
    """The roles, in order. Records name the first one."""
    scopes: frozenset[str] = frozenset()
    """The scopes of the token, if it states any."""
    label: str = ""
    """The name that records and logs show; the subject unless someone else acts in its place."""

    def __post_init__(self) -> None:
        if not self.subject:
            force_setattr(self, "subject", self.id)
        if not self.label:
            force_setattr(self, "label", self.subject)


# The local user: over stdio, or over HTTP without `[auth]`.
LOCAL_PRINCIPAL = Principal("local")

_NO_ENVELOPE = Raw(b"{}")


class Caller(Struct, frozen=True):
    """One downstream client, as far as a call needs to know it."""

    principal: Principal
    revision: Revision
    capabilities: dict[str, Any]
    client_info: Raw
    log_level: str | None = None
    """The least severe log message to send with the answer; None for no messages at all."""
    client_features: frozenset[str] = frozenset()
    """The features of the client that servers may use, given its revision. Derived."""
    envelope: Raw = _NO_ENVELOPE
    """What a stateless server is told about the client, as `_meta`. Derived."""

    def __post_init__(self) -> None:
        capabilities = capabilities_for_revision(self.capabilities, self.revision)
        envelope: dict[str, object] = {
            VERSION_KEY: LATEST_STATELESS_REVISION.date,
            CAPABILITIES_KEY: capabilities_for_revision(capabilities, LATEST_STATELESS_REVISION),
            CLIENT_INFO_KEY: self.client_info,
        }
        if self.log_level is not None:
            envelope[LOG_LEVEL_KEY] = self.log_level
        force_setattr(self, "client_features", read_client_features(capabilities))
        force_setattr(self, "envelope", to_raw(envelope))


def cancelled_notification(id: int) -> Notification:
    """Return the notification that tells the receiver of request `id` to stop working on it."""
    return Notification("notifications/cancelled", {"requestId": id, "reason": "cancelled"})
