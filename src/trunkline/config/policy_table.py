"""The tables `[roles.NAME]` and `[[policy]]`: their keys, and what the types do not say of them.

    [roles.dev], [[policy]] ──fit──> complaints ──> PolicySettings, each part with its line

Refuses to decide anything: `routing.policy` does, from what is found here.

Rules upheld here:
1. A rule allows or denies, one of the two; what it could never be about is a mistake.
2. A condition is read when the file is: one that means nothing is a mistake, with line and column.
"""

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from trunkline.config.forms import NOT_BLANK, form, form_beside_list
from trunkline.config.server_table import ServerName
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Report, meant, quoted
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, as_table, table_in
from trunkline.routing.conditions import MAX_LENGTH, Condition, ConditionError
from trunkline.routing.policy import Permission

_NAME = r"^\S[^\x00-\x1f]*$"
RoleName = Annotated[str, form(_NAME, "the name of a role, up to 128 characters", 128)]
NamePattern = Annotated[
    str, form(_NAME, "a name of up to 128 characters, with * and ? for what may vary", 128)
]
_OFFER = (
    r"^[^\s\x00-\x1f]+$",
    "the name of a tool, or a URI, with * and ? for what may vary",
    512,
)
OfferPattern = Annotated[str, form(*_OFFER)]
OnePattern = Annotated[str, form_beside_list(*_OFFER)]
RoleNames = Annotated[tuple[RoleName, ...], Meta(min_length=1)]
NamePatterns = Annotated[tuple[NamePattern, ...], Meta(min_length=1)]
ServerNames = Annotated[tuple[ServerName, ...], Meta(min_length=1)]
OfferPatterns = Annotated[tuple[OfferPattern, ...], Meta(min_length=1)]
KindName = Literal["tool", "prompt", "resource", "template"]
Hint = Literal["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
When = Annotated[str, form(NOT_BLANK, f"a condition of up to {MAX_LENGTH} characters", MAX_LENGTH)]


class RoleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What those may do who have a role."""

    permissions: Annotated[
        tuple[Permission, ...],
        Meta(description="What they may do; nothing unless set."),
    ] = ()
    denied_tools: Annotated[
        tuple[OfferPattern, ...],
        Meta(description="Tools that are not there for them, whatever else is allowed."),
    ] = ()


class RuleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule; the first that matches decides."""

    allow: Annotated[
        OnePattern | OfferPatterns | None,
        Meta(description="What it allows: a pattern, or a list of them."),
    ] = None
    deny: Annotated[
        OnePattern | OfferPatterns | None,
        Meta(description="What it denies: a pattern, or a list of them."),
    ] = None
    roles: Annotated[
        RoleNames | None, Meta(description="Only for those who have one of these roles.")
    ] = None
    subjects: Annotated[
        NamePatterns | None, Meta(description="Only for these subjects, by patterns.")
    ] = None
    clients: Annotated[
        NamePatterns | None,
        Meta(description="Only for clients that call themselves so, by patterns."),
    ] = None
    servers: Annotated[
        ServerNames | None, Meta(description="Only for what these servers offer.")
    ] = None
    kinds: Annotated[
        Annotated[tuple[KindName, ...], Meta(min_length=1)] | None,
        Meta(description="Only for offers of these kinds; for all unless set."),
    ] = None
    annotations: Annotated[
        Annotated[dict[Hint, bool], Meta(min_length=1)] | None,
        Meta(description="Only for tools of which their servers say this."),
    ] = None
    when: Annotated[When | None, Meta(description="Only if this condition holds, in CEL.")] = None


class RoleSettings(RoleTable, frozen=True, kw_only=True):
    """A role, and the line where it begins."""

    name: str
    line: int


class RuleSettings(RuleTable, frozen=True, kw_only=True):
    """A rule, and the line where it begins."""

    line: int

    @property
    def patterns(self) -> tuple[str, ...]:
        """What it is about."""
        found = self.allow if self.allow is not None else self.deny
        return (found,) if isinstance(found, str) else found or ()

    @property
    def hints(self) -> tuple[tuple[str, bool], ...]:
        """What servers must say of the tools that it is about."""
        return tuple((self.annotations or {}).items())


class PolicySettings(Struct, frozen=True, kw_only=True):
    """Who may do what, as the file says it."""

    roles: tuple[RoleSettings, ...] = ()
    rules: tuple[RuleSettings, ...] = ()


ROLES = Annotated[dict[RoleName, RoleTable], Meta(description="Roles, by name.")]
RULES = Annotated[
    tuple[RuleTable, ...],
    Meta(
        description="Rules, in order: the first that matches decides.",
        extra={"tables": "write [[policy]], in double brackets"},
    ),
]


def check_policy(tree: Table, report: Report) -> None:
    """Complain about rules that make no sense; those that break the types are passed over."""
    for number, value in enumerate(_rules(tree)):
        try:
            rule = msgspec.convert(value, RuleTable)
        except msgspec.ValidationError:
            continue
        _check_rule(rule, ("policy", number), tree, report)


def fill_policy(tree: Table, _: Surroundings, report: Report) -> Table:
    """Return roles and rules, each with its line."""

    def at(path: KeyPath, value: object, **more: str) -> Table:
        return (as_table(value) or {}) | more | {"line": report.lines.find(path).line}

    roles = table_in(tree, "roles").items()
    return {
        "roles": [at(("roles", name), value, name=name) for name, value in roles],
        "rules": [at(("policy", number), rule) for number, rule in enumerate(_rules(tree))],
    }


def _rules(tree: Table) -> list[Any]:
    found = tree.get("policy")
    return cast("list[Any]", found) if isinstance(found, list) else []


def _check_rule(rule: RuleTable, path: KeyPath, tree: Table, report: Report) -> None:
    servers, roles = table_in(tree, "servers"), table_in(tree, "roles")
    if (rule.allow is None) == (rule.deny is None):
        said = "it does neither" if rule.allow is None else "it says both"
        report.error(path, f"a rule allows or denies: {said}", 'write allow = "…" or deny = "…"')
    for number, server in enumerate(rule.servers or ()):
        if server not in servers:
            other = meant(server, servers)
            fix = f'did you mean "{other}"?' if other else "name one of [servers.NAME]"
            report.error((*path, "servers", number), f"there is no server {quoted(server)}", fix)
    # Where there are no tables of roles, whatever a token says is one.
    for number, name in enumerate((rule.roles or ()) if roles else ()):
        if name not in roles:
            at = (*path, "roles", number)
            report.note(at, f"there is no [roles.{quoted(name)}]", "check its spelling")
    if rule.annotations and rule.kinds is not None and "tool" not in rule.kinds:
        why = "only tools have annotations, and the rule is about other kinds"
        report.error((*path, "annotations"), why, 'leave it out, or add "tool" to kinds')
    if rule.when is not None:
        try:
            Condition(rule.when)
        except ConditionError as why:
            place = f"in line {why.line}, column {why.column} of the condition"
            report.error((*path, "when"), f"{why.why}, {place}", "see the reference for conditions")
