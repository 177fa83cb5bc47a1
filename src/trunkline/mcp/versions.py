"""The revisions of MCP, and what differs between them.

    session protocol   2024-11-05  2025-03-26  2025-06-18  2025-11-25  `initialize` starts a session
    stateless protocol 2026-07-28                                      every request stands alone

A revision is text only where it enters or leaves the gateway: `find_revision` reads it, `date` is
what is written. Everything between asks a Revision for its properties. Each revision is written as
the one before it and its changes, so a new revision is one more object here, and its translations
in `compat`.

Rule upheld here: there is one Revision object per revision, so that `is` compares revisions.
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace


class Era(StrEnum):
    """How a conversation states its revision: once per session, or in every request."""

    SESSION = "session"
    STATELESS = "stateless"


class Revision(Struct, frozen=True, eq=False, kw_only=True):
    """One revision of MCP, by its properties. It is compared and hashed by identity."""

    date: str
    """Its name on the wire."""
    is_stateless: bool = False
    """Whether every request stands alone, with an envelope; there are no sessions."""
    allows_batches: bool = False
    """Whether a message may be a JSON-RPC batch."""
    has_resumable_streams: bool = False
    """Whether a client can resume an HTTP stream that broke."""
    has_priming_events: bool = False
    """Whether a resumable stream begins with an empty event. Older clients fail to parse it."""
    has_audio: bool = False
    """Whether content may be audio."""
    has_resource_links: bool = False
    """Whether the content of a result may be a link to a resource."""
    has_structured_content: bool = False
    """Whether tools have `outputSchema`, and their results `structuredContent`."""
    allows_any_structured_content: bool = False
    """Whether structured content, and its schema, may be of any JSON type, not only an object."""
    has_completion_context: bool = False
    """Whether a completion states the arguments that are already known."""
    reports_bad_arguments_as_result: bool = False
    """Whether invalid arguments of a tool give a result with `isError`, which models can read."""
    has_tasks: bool = False
    """Whether the capability `tasks` exists. The stateless protocol has an extension instead."""
    has_elicitation: bool = False
    """Whether a server may ask the user."""
    has_elicitation_modes: bool = False
    """Whether an elicitation has a mode: a form, or a URL to visit."""
    has_extended_forms: bool = False
    """Whether forms have multiple choices, titles of choices and defaults for any field."""
    has_sampling_tools: bool = False
    """Whether a sampling request may have tools, and several content blocks in one message."""
    has_capability_details: bool = False
    """Whether the capabilities for sampling and elicitation say which kinds a client supports."""

    @property
    def era(self) -> Era:
        """The era that it belongs to."""
        return Era.STATELESS if self.is_stateless else Era.SESSION


V2024_11_05 = Revision(date="2024-11-05")

V2025_03_26 = replace(
    V2024_11_05,
    date="2025-03-26",
    allows_batches=True,
    has_audio=True,
    has_resumable_streams=True,
)

V2025_06_18 = replace(
    V2025_03_26,
    date="2025-06-18",
    allows_batches=False,
    has_resource_links=True,
    has_structured_content=True,
    has_completion_context=True,
    has_elicitation=True,
)

V2025_11_25 = replace(
    V2025_06_18,
    date="2025-11-25",
    has_priming_events=True,
    reports_bad_arguments_as_result=True,
    has_tasks=True,
    has_elicitation_modes=True,
    has_extended_forms=True,
    has_sampling_tools=True,
    has_capability_details=True,
)

V2026_07_28 = replace(
    V2025_11_25,
    date="2026-07-28",
    is_stateless=True,
    has_resumable_streams=False,
    has_priming_events=False,
    allows_any_structured_content=True,
    has_tasks=False,
)

# All revisions, oldest first.
REVISIONS = (V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25, V2026_07_28)
SESSION_REVISIONS = tuple(revision for revision in REVISIONS if not revision.is_stateless)
STATELESS_REVISIONS = tuple(revision for revision in REVISIONS if revision.is_stateless)

LATEST_SESSION_REVISION = SESSION_REVISIONS[-1]
LATEST_STATELESS_REVISION = STATELESS_REVISIONS[-1]

_BY_DATE = {revision.date: revision for revision in REVISIONS}


def find_revision(date: str) -> Revision | None:
    """Return the revision of this name, or None if the gateway does not know it."""
    return _BY_DATE.get(date)


def find_session_revision(date: str) -> Revision | None:
    """Return the revision of this name if it belongs to the session protocol."""
    revision = _BY_DATE.get(date)
    return None if revision is None or revision.is_stateless else revision


def negotiate_revision(requested: str) -> Revision:
    """Return the revision to answer an `initialize` with: the requested one, or else the latest.

    An unknown revision is not an error. The client decides whether it can use the answer.
    """
    return find_session_revision(requested) or LATEST_SESSION_REVISION


def list_dates(revisions: tuple[Revision, ...]) -> list[str]:
    """Return the names of revisions, as lists of supported revisions state them."""
    return [revision.date for revision in revisions]
