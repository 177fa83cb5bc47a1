"""The `[[webhooks]]` tables: which events are sent where.

    [[webhooks]] ── check_webhooks ──> errors ── resolve_webhooks ──> references and keys resolved

Nothing here connects; `trunkline.webhooks` delivers.

Invariants:
1. Every webhook has a name of its own and a valid URL. Its keys are valid; a webhook without any
   key sends nothing, and a note says so.
2. Errors and reprs show no key, and no query of a URL.
"""

from fnmatch import fnmatchcase
from typing import Annotated, Any, cast

from msgspec import Meta, Struct

from trunkline.config.addresses import is_http_url_without_user
from trunkline.config.references import ResolveContext, resolve_references
from trunkline.documents.errors import ErrorCollector, KeyPath, closest_match, quote
from trunkline.documents.formats import (
    WILDCARD_PATTERN,
    NonBlankText,
    text_format,
    text_format_in_union,
)
from trunkline.documents.parser import Table, as_table, get_table
from trunkline.jsonrpc.webhooks import parse_webhook_key

EVENT_NAMES = (
    "server.down",
    "server.up",
    "server.output",
    "server.features",
    "server.sessions",
    "kill",
    "revive",
    "pause",
    "resume",
    "limit.exceeded",
    "auth.rejected",
    "config.reloaded",
    "config.rejected",
    "audit.problem",
    "audit.recovered",
    "tools.changed",
    "tool.unchecked",
    "incident",
    "webhook.test",
)
"""All events; `webhook.test` is sent by `trunkline webhooks test` only."""

MAX_WEBHOOKS = 32

WebhookName = Annotated[
    str, text_format("^[A-Za-z0-9][A-Za-z0-9._-]*$", "a name of letters, digits, . _ and -", 64)
]
EventPattern = Annotated[
    str, text_format("^[a-z_.*?]+$", "the name of an event, with * and ? for what may vary", 64)
]
ServerPattern = Annotated[
    str, text_format(WILDCARD_PATTERN, "the name of a server, with * and ? for what may vary")
]
_VARIABLE_FORMAT = ("^[A-Za-z_][A-Za-z0-9_]*$", "the name of a variable, not its value")
VariableName = Annotated[str, text_format(*_VARIABLE_FORMAT)]
SingleVariable = Annotated[str, text_format_in_union(*_VARIABLE_FORMAT)]


class WebhookTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A URL that is told of events of the gateway."""

    name: Annotated[WebhookName, Meta(description="The name of the webhook in commands and logs.")]
    url: Annotated[NonBlankText, Meta(description="Where messages are POSTed.")]
    secret_env: Annotated[
        SingleVariable | Annotated[tuple[VariableName, ...], Meta(min_length=1, max_length=4)],
        Meta(description="The variables with the signing keys, new key first while keys rotate."),
    ]
    events: Annotated[
        tuple[EventPattern, ...],
        Meta(min_length=1, max_length=64, description="Patterns of the events that are sent."),
    ] = ("*",)
    servers: Annotated[
        tuple[ServerPattern, ...],
        Meta(max_length=64, description="Patterns of servers: only events about these are sent."),
    ] = ()
    timeout: Annotated[
        float, Meta(ge=1, le=60, description="Seconds that the receiver has to answer.")
    ] = 10.0
    max_queue: Annotated[
        int, Meta(ge=1, le=100_000, description="Messages that may wait; further ones are dropped.")
    ] = 1000
    allow_private: Annotated[
        bool,
        Meta(description="Whether addresses of private networks and of this machine are allowed."),
    ] = False


WebhooksField = Annotated[
    tuple[WebhookTable, ...],
    Meta(
        description="URLs that are told of events.",
        extra={"tables": "write [[webhooks]], in double brackets"},
    ),
]


class WebhookSettings(WebhookTable, frozen=True, kw_only=True):
    """A webhook with its keys."""

    keys: tuple[bytes, ...] = ()
    key_texts: tuple[str, ...] = ()
    """The keys as their variables have them, to be masked."""

    def __repr__(self) -> str:
        return f"WebhookSettings({self.name!r}, …)"


def check_webhooks(tree: Table, report: ErrorCollector) -> None:
    """Report errors that need no environment; values of wrong type are skipped."""
    names: set[str] = set()
    tables = _webhook_tables(tree)
    if tables and get_table(tree, "gateway").get("state_dir") == "":
        reason = "webhooks need a state directory: their messages are stored there"
        report.add_error(("gateway", "state_dir"), reason, "leave it out, or name a folder")
    if len(tables) > MAX_WEBHOOKS:
        reason = f"expected at most {MAX_WEBHOOKS} webhooks, got {len(tables)}"
        report.add_error(("webhooks",), reason, "leave some out")
    for number, value in enumerate(tables):
        table, path = as_table(value) or {}, ("webhooks", number)
        if isinstance(name := table.get("name"), str):
            if name in names:
                reason = f"there are two webhooks {quote(name)}"
                report.add_error((*path, "name"), reason, "choose another name")
            names.add(name)
        events = table.get("events")
        if isinstance(events, list):
            _check_events(cast("list[object]", events), path, report)
        servers = table.get("servers")
        known = as_table(tree.get("servers")) or {}
        for index, server in enumerate(cast("list[object]", servers or [])):
            if isinstance(server, str) and not set(server) & set("*?[") and server not in known:
                other = closest_match(server, known)
                fix = f'did you mean "{other}"?' if other else "name one of [servers.NAME]"
                place = (*path, "servers", index)
                report.add_error(place, f"there is no server {quote(server)}", fix)


def _check_events(events: list[object], path: KeyPath, report: ErrorCollector) -> None:
    for index, event in enumerate(events):
        if isinstance(event, str) and not any(fnmatchcase(each, event) for each in EVENT_NAMES):
            other = closest_match(event, EVENT_NAMES)
            fix = f'did you mean "{other}"?' if other else f"name one of {', '.join(EVENT_NAMES)}"
            report.add_error((*path, "events", index), f"no event matches {quote(event)}", fix)


def resolve_webhooks(tree: Table, context: ResolveContext, report: ErrorCollector) -> list[Any]:
    """Return the tables with references resolved, and keys read from their variables."""
    return [
        _resolve_webhook(as_table(value) or {}, ("webhooks", number), context, report)
        for number, value in enumerate(_webhook_tables(tree))
    ]


def _resolve_webhook(
    table: Table, path: KeyPath, context: ResolveContext, report: ErrorCollector
) -> Table:
    resolved = dict(table)
    if isinstance(url := table.get("url"), str):
        place = (*path, "url")
        resolved["url"] = resolve_references(
            url, context, lambda reason, fix: report.add_error(place, reason, fix)
        )
        if not is_http_url_without_user(resolved["url"]):
            reason = "expected http:// or https:// and a host, without a name and a password in it"
            report.add_error(place, reason, "write the whole address")
    names = table.get("secret_env")
    names = [names] if isinstance(names, str) else names
    keys, texts = list[bytes](), list[str]()
    for name in cast("list[object]", names or []):
        if not isinstance(name, str):
            continue
        place, text = (*path, "secret_env"), context.environ.get(name)
        if not text:
            # Not an error: commands such as `audit query` need no key.
            fix = "set it to a key; `trunkline webhooks secret` prints a new key"
            report.add_note(place, f"the variable {name} is not set, so it signs no message", fix)
            continue
        try:
            keys.append(parse_webhook_key(text))
        except ValueError as error:
            fix = "run `trunkline webhooks secret`, and use what it prints"
            report.add_error(place, f"the variable {name}: {error}", fix)
        texts.append(text)
    return resolved | {"keys": keys, "key_texts": texts}


def _webhook_tables(tree: Table) -> list[Any]:
    found = tree.get("webhooks")
    return cast("list[Any]", found) if isinstance(found, list) else []
