"""The methods of MCP: everything that the gateway knows of a method is its row here.

Which table a row is in says who sends the method. A message's row is looked up by name once, and
then passed on. Nothing copies the tables, so a row that is added works everywhere. A method that is
not in a table is unknown to the gateway.
"""

from collections.abc import Container
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import force_setattr

from trunkline.mcp.features import FeatureKind
from trunkline.mcp.versions import REVISIONS, SESSION_REVISIONS, STATELESS_REVISIONS, Revision


class RoutingMode(StrEnum):
    """Where the gateway sends a message that it has received."""

    LOCAL = "local"
    """The gateway answers it."""
    MERGED = "merged"
    """The gateway answers it from the catalogue."""
    BY_NAME = "by name"
    """To the backend that has the feature `params.name`."""
    BY_URI = "by uri"
    """To the backend that has the resource `params.uri`."""
    BY_REF = "by ref"
    """To the backend that has the feature named by `params.ref`."""
    SUBSCRIPTION = "subscription"
    """The gateway notes who subscribed to `params.uri`, and subscribes once at its backend."""
    BROADCAST = "broadcast"
    """To every backend that has it; from a backend, to the sessions of clients that see it."""
    TO_CALLER = "to caller"
    """From a backend to the client whose call caused it, or back from that client."""
    PASSTHROUGH = "passthrough"
    """To the only backend there is, since MCP does not define it."""
    REFUSED = "refused"
    """Nowhere: only the gateway sends it, and it refuses it from others."""


class ResultShape(StrEnum):
    """The content of a result, as far as the gateway reads it."""

    OPAQUE = "opaque"
    """Members that the gateway does not read."""
    EMPTY = "empty"
    """No members. Strict clients reject any."""
    CONTENT = "content"
    """Blocks in `content`, and perhaps `structuredContent`."""
    CONTENTS = "contents"
    """The contents of resources, in `contents`."""
    MESSAGES = "messages"
    """Messages with one block each, in `messages`."""


# Module constants, because up to Python 3.11 the lookup of an enum member is slow.
BY_NAME, BY_REF, BY_URI = RoutingMode.BY_NAME, RoutingMode.BY_REF, RoutingMode.BY_URI
LOCAL, MERGED, BROADCAST = RoutingMode.LOCAL, RoutingMode.MERGED, RoutingMode.BROADCAST
SUBSCRIPTION, TO_CALLER = RoutingMode.SUBSCRIPTION, RoutingMode.TO_CALLER
REFUSED = RoutingMode.REFUSED
EMPTY, CONTENT = ResultShape.EMPTY, ResultShape.CONTENT
CONTENTS, MESSAGES = ResultShape.CONTENTS, ResultShape.MESSAGES

_TARGETS = {BY_NAME: "name", BY_URI: "uri", BY_REF: "ref", SUBSCRIPTION: "uri"}


class Method(Struct, frozen=True, eq=False):
    """One request method or notification. It is compared and hashed by identity."""

    name: str
    mode: RoutingMode
    revisions: frozenset[Revision]
    """The revisions that have it. Stateless servers send their requests as input requests."""
    capability: str | None = None
    """The capability that the receiver must have declared."""
    kind: FeatureKind | None = None
    """The kind of the feature that it names, or of those that it lists or announces."""
    result: ResultShape = ResultShape.OPAQUE
    is_cacheable: bool = False
    """Whether its stateless results have `ttlMs` and `cacheScope`, as members of their own."""
    may_request_input: bool = False
    """Whether its result may be `input_required`."""
    may_be_task: bool = False
    """Whether a client may have it run as a task, by `params.task`."""
    has_arguments: bool = True
    """Whether `params.arguments` are the arguments of the feature, which policy rules may check."""
    operation: str | None = None
    """The `gen_ai.operation.name` of its spans."""
    header_member: str | None = None
    """The member of params that HTTP repeats as `Mcp-Name`. By default the name or URI."""
    client_features: tuple[str, ...] = ()
    """The details of a client's capability, as `capability.detail`; a server request needs one of
    them. By default, it needs the capability.
    """
    is_probe: bool = False
    """Whether it detects which protocol a server speaks; an HTTP error is then a result."""
    precedes_session: bool = False
    """Whether it is accepted before `initialize` has succeeded."""
    starts_session: bool = False
    """Whether it starts a session, and so belongs to none."""
    opens_stream: bool = False
    """Whether it opens a stream of notifications, and is answered when that ends."""
    is_answer_kept: bool = False
    """Whether servers may keep the answer for later calls, so that it must be the same client's."""
    has_progress_token: bool = False
    """Whether `params.progressToken` says which request it is about."""
    is_log_message: bool = False
    """Whether the log level that a client has set decides if the client gets it."""
    target: str | None = None
    """The member of params that names its target. Derived."""
    call_revisions: frozenset[Revision] = frozenset()
    """The revisions in which it is a call. Derived."""

    def __post_init__(self) -> None:
        force_setattr(self, "target", _TARGETS.get(self.mode))
        is_call = self.mode in (BY_NAME, BY_URI, BY_REF)
        force_setattr(self, "call_revisions", self.revisions if is_call else frozenset())
        if self.header_member is None and self.mode in (BY_NAME, BY_URI):
            force_setattr(self, "header_member", self.target)
        if self.mode is TO_CALLER and self.capability and not self.client_features:
            force_setattr(self, "client_features", (self.capability,))

    @property
    def is_call(self) -> bool:
        """Whether it goes to the owner of its target. Such requests are governed and recorded."""
        return bool(self.call_revisions)

    def is_known_to(self, revision: Revision, capabilities: Container[str]) -> bool:
        """Return whether a receiver of this revision, with these capabilities, has it."""
        return revision in self.revisions and (
            self.capability is None or self.capability in capabilities
        )


def _table(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


def undefined_method(name: str) -> Method:
    """Return the row of a method that MCP does not define."""
    return Method(name, RoutingMode.PASSTHROUGH, _ALL)


_ALL, _SESSION = frozenset(REVISIONS), frozenset(SESSION_REVISIONS)
_STATELESS = frozenset(STATELESS_REVISIONS)
_ELICITATION = frozenset(r for r in REVISIONS if r.has_elicitation)
_ELICITATION_MODES = frozenset(r for r in SESSION_REVISIONS if r.has_elicitation_modes)
_TASKS = frozenset(r for r in REVISIONS if r.has_tasks or r.is_stateless)

_TOOL, _PROMPT = FeatureKind.TOOL, FeatureKind.PROMPT
_RESOURCE, _TEMPLATE = FeatureKind.RESOURCE, FeatureKind.TEMPLATE

# The requests that a client may send.
CLIENT_REQUESTS = _table(
    Method(
        "initialize", LOCAL, _SESSION, is_probe=True, precedes_session=True, starts_session=True
    ),
    Method("ping", LOCAL, _SESSION, result=EMPTY, precedes_session=True),
    Method("server/discover", LOCAL, _STATELESS, is_cacheable=True, is_probe=True),
    Method("subscriptions/listen", LOCAL, _STATELESS, opens_stream=True),
    Method("tools/list", MERGED, _ALL, "tools", _TOOL, is_cacheable=True),
    Method(
        "tools/call",
        BY_NAME,
        _ALL,
        "tools",
        _TOOL,
        CONTENT,
        may_request_input=True,
        may_be_task=True,
        operation="execute_tool",
    ),
    Method("prompts/list", MERGED, _ALL, "prompts", _PROMPT, is_cacheable=True),
    Method("prompts/get", BY_NAME, _ALL, "prompts", _PROMPT, MESSAGES, may_request_input=True),
    Method("resources/list", MERGED, _ALL, "resources", _RESOURCE, is_cacheable=True),
    Method("resources/templates/list", MERGED, _ALL, "resources", _TEMPLATE, is_cacheable=True),
    Method(
        "resources/read",
        BY_URI,
        _ALL,
        "resources",
        _RESOURCE,
        CONTENTS,
        is_cacheable=True,
        may_request_input=True,
    ),
    Method("resources/subscribe", SUBSCRIPTION, _SESSION, "resources", _RESOURCE, EMPTY),
    Method("resources/unsubscribe", SUBSCRIPTION, _SESSION, "resources", _RESOURCE, EMPTY),
    Method("completion/complete", BY_REF, _ALL, "completions", has_arguments=False),
    Method("logging/setLevel", LOCAL, _SESSION, "logging", result=EMPTY),
)

# The notifications that a client may send.
CLIENT_NOTIFICATIONS = _table(
    Method("notifications/initialized", LOCAL, _SESSION),
    Method("notifications/cancelled", LOCAL, _ALL, precedes_session=True),
    Method("notifications/progress", TO_CALLER, _SESSION, has_progress_token=True),
    Method("notifications/roots/list_changed", BROADCAST, _SESSION),
)

# The requests that a server may send.
SERVER_REQUESTS = _table(
    Method("ping", LOCAL, _SESSION, result=EMPTY, precedes_session=True),
    Method("roots/list", TO_CALLER, _ALL, "roots", is_answer_kept=True),
    Method(
        "sampling/createMessage",
        TO_CALLER,
        _ALL,
        "sampling",
        client_features=("sampling", "sampling.tools"),
    ),
    Method(
        "elicitation/create",
        TO_CALLER,
        _ELICITATION,
        "elicitation",
        client_features=("elicitation.form", "elicitation.url"),
    ),
)

# The notifications that a server may send.
SERVER_NOTIFICATIONS = _table(
    Method("notifications/cancelled", LOCAL, _ALL),
    Method("notifications/progress", TO_CALLER, _ALL, has_progress_token=True),
    Method("notifications/message", TO_CALLER, _ALL, is_log_message=True),
    Method("notifications/tools/list_changed", MERGED, _ALL, kind=_TOOL),
    Method("notifications/prompts/list_changed", MERGED, _ALL, kind=_PROMPT),
    Method("notifications/resources/list_changed", MERGED, _ALL, kind=_RESOURCE),
    Method("notifications/resources/updated", SUBSCRIPTION, _ALL, kind=_RESOURCE),
    Method("notifications/elicitation/complete", BROADCAST, _ELICITATION_MODES),
    Method("notifications/subscriptions/acknowledged", LOCAL, _STATELESS),
)

# The requests about tasks. Only the gateway sends them, since clients are offered no tasks.
TASK_REQUESTS = _table(
    Method("tasks/get", REFUSED, _TASKS, header_member="taskId"),
    Method("tasks/result", REFUSED, _TASKS),
    Method("tasks/update", REFUSED, _TASKS, header_member="taskId"),
    Method("tasks/cancel", REFUSED, _TASKS, header_member="taskId"),
)

# Everything that the gateway knows.
TABLES = (
    CLIENT_REQUESTS,
    CLIENT_NOTIFICATIONS,
    SERVER_REQUESTS,
    SERVER_NOTIFICATIONS,
    TASK_REQUESTS,
)


def is_defined(name: str) -> bool:
    """Return whether a method is in a table, or is about tasks, which are the gateway's own."""
    is_about_task = name.startswith(("tasks/", "notifications/tasks"))
    return is_about_task or any(name in table for table in TABLES)
