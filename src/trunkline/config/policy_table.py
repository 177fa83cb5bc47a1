"""The tables `[roles.NAME]` and `[[policy]]`: their keys, and what the types do not say of them.

    [roles.dev], [[policy]] ──fit──> complaints ──> PolicySettings, each part with its line

Refuses to decide anything: `routing.policy` does, from what is found here.

Rules upheld here:
1. A rule allows or denies, one of the two; what it could never be about is a mistake.
2. A condition is read when the file is: one that means nothing is a mistake, with line and column.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, cast

import msgspec
import msgspec.inspect
from msgspec import Meta, Struct

from trunkline.documents.errors import Report, meant, quoted
from trunkline.documents.fit import fit
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table
from trunkline.routing.conditions import MAX_LENGTH, Condition, ConditionError
from trunkline.routing.policy import Permission

RoleName = Annotated[
    str,
    Meta(
        pattern=r"^\S[^\x00-\x1f]*$",
        max_length=128,
        extra={"expected": "the name of a role, up to 128 characters"},
    ),
]
_EXPECTED = {"expected": "the name of a tool, or a URI, with * and ? for what may vary"}
OfferPattern = Annotated[str, Meta(pattern=r"^[^\s\x00-\x1f]+$", max_length=512, extra=_EXPECTED)]
# Without its pattern, which is looked at apart: msgspec 0.22 frees one twice that stands beside a
# list in a union, and takes the interpreter down as it ends.
OnePattern = Annotated[str, Meta(max_length=512, extra=_EXPECTED)]
NamePatterns = Annotated[tuple[RoleName, ...], Meta(min_length=1)]
OfferPatterns = Annotated[tuple[OfferPattern, ...], Meta(min_length=1)]
KindName = Literal["tool", "prompt", "resource", "template"]
Hint = Literal["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
When = Annotated[
    str,
    Meta(
        pattern=r"^\s*\S[\s\S]*$",
        max_length=MAX_LENGTH,
        extra={"expected": f"a condition of up to {MAX_LENGTH} characters"},
    ),
]


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
        NamePatterns | None, Meta(description="Only for those who have one of these roles.")
    ] = None
    subjects: Annotated[
        NamePatterns | None, Meta(description="Only for these subjects, by patterns.")
    ] = None
    clients: Annotated[
        NamePatterns | None,
        Meta(description="Only for clients that call themselves so, by patterns."),
    ] = None
    servers: Annotated[
        NamePatterns | None, Meta(description="Only for what these servers offer.")
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
    tuple[RuleTable, ...], Meta(description="Rules, in order: the first that matches decides.")
]

_PATTERN = msgspec.inspect.type_info(OfferPattern)
_ROLES = msgspec.inspect.type_info(dict[RoleName, RoleTable])
_RULES = msgspec.inspect.type_info(tuple[RuleTable, ...])


def read_policy(tree: Table, servers: Iterable[str], report: Report) -> PolicySettings:
    """Return what a file says about who may do what, complaining of what makes no sense."""
    broken: list[KeyPath] = []

    def complain(path: KeyPath, why: str, fix: str) -> None:
        broken.append(path)
        report.error(path, why, fix)

    roles, rules = tree.get("roles", {}), tree.get("policy", [])
    fit(roles, _ROLES, ("roles",), complain)
    if isinstance(rules, dict):
        complain(("policy",), "expected a list of tables", "write [[policy]], in double brackets")
    else:
        fit(rules, _RULES, ("policy",), complain)
    if broken:
        return PolicySettings()
    found = _settings(cast("dict[str, Table]", roles), cast("list[Table]", rules), report)
    for number, rule in enumerate(found.rules):
        _check_rule(rule, ("policy", number), tuple(servers), report)
    _note_unknown_roles(found, report)
    return found


def _settings(roles: dict[str, Table], rules: list[Table], report: Report) -> PolicySettings:
    """Return what tables say that were found to be good, and where each of them stands."""

    def at(*path: str | int) -> Table:
        return {"line": report.lines.find(path).line}

    named = [table | {"name": name} | at("roles", name) for name, table in roles.items()]
    ordered = [table | at("policy", number) for number, table in enumerate(rules)]
    return PolicySettings(
        roles=tuple(msgspec.convert(table, RoleSettings) for table in named),
        rules=tuple(msgspec.convert(table, RuleSettings) for table in ordered),
    )


def _check_rule(
    rule: RuleSettings, path: KeyPath, servers: tuple[str, ...], report: Report
) -> None:
    if (rule.allow is None) == (rule.deny is None):
        said = "it does neither" if rule.allow is None else "it says both"
        report.error(path, f"a rule allows or denies: {said}", 'write allow = "…" or deny = "…"')
    for key, pattern in (("allow", rule.allow), ("deny", rule.deny)):
        if isinstance(pattern, str):
            fit(pattern, _PATTERN, (*path, key), report.error)
    for number, server in enumerate(rule.servers or ()):
        if server not in servers:
            other = meant(server, servers)
            fix = f'did you mean "{other}"?' if other else "name one of [servers.NAME]"
            report.error((*path, "servers", number), f"there is no server {quoted(server)}", fix)
    if rule.hints and rule.kinds is not None and "tool" not in rule.kinds:
        why = "only tools have annotations, and the rule is about other kinds"
        report.error((*path, "annotations"), why, 'leave it out, or add "tool" to kinds')
    if rule.when is not None:
        try:
            Condition(rule.when)
        except ConditionError as why:
            place = f"in line {why.line}, column {why.column} of the condition"
            report.error((*path, "when"), f"{why.why}, {place}", "see the reference for conditions")


def _note_unknown_roles(found: PolicySettings, report: Report) -> None:
    """Note roles in rules that no table is about: where there are tables, that may be a slip."""
    known = {role.name for role in found.roles}
    for number, rule in enumerate(found.rules):
        for place, name in enumerate(rule.roles or ()):
            if known and name not in known:
                path: KeyPath = ("policy", number, "roles", place)
                report.note(path, f"there is no [roles.{quoted(name)}]", "check its spelling")
