"""The `[kill_switch]`, `[limits]`, `[roles.NAME]` and `[[policy]]` tables, and policy tests.

    [limits.tools]
    "tracker__*" = 60                             # calls per minute of each subject
    "db__query" = { rpm = 30, concurrent = 2, total_rpm = 300 }

Nothing here decides about calls: `routing` does. `read_expectations` reads the file of
`trunkline policy test`.

Invariants:
1. A disabled server exists; a misspelt name would disable nothing.
2. Kill switches, roles and rules keep their lines, for messages that point to them.
3. A rule either allows or denies, and can match something.
4. Conditions are compiled with the file; mistakes have line and column.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import msgspec.inspect
from msgspec import Meta, Struct, field

from trunkline.config.references import ResolveContext
from trunkline.config.server_table import ServerName
from trunkline.documents.errors import ErrorCollector, KeyPath, closest_match, quote
from trunkline.documents.formats import (
    NOT_BLANK_PATTERN,
    WILDCARD_PATTERN,
    ToolPattern,
    text_format,
    text_format_in_union,
)
from trunkline.documents.parser import Table, as_table, get_table, parse_toml, read_text
from trunkline.documents.validation import validate
from trunkline.routing.conditions import (
    MAX_CONDITION_LENGTH,
    Condition,
    ConditionError,
    ConditionsUnavailable,
)
from trunkline.routing.policy import Permission

SwitchTarget = Annotated[
    str,
    text_format(
        r"^[^\x00-\x1f\x7f-\x9f]+$",
        "a name of up to 256 characters, none of them a control character",
        256,
    ),
]

SWITCH_LISTS = ("tools", "servers", "subjects")
# The limit of entries in each list.
MAX_SWITCHES = 1000


class KillSwitchTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is disabled: calls get `disabled`, and lists leave it out."""

    tools: Annotated[
        tuple[ToolPattern, ...],
        Meta(max_length=MAX_SWITCHES, description="Tools to disable, by name or pattern."),
    ] = ()
    servers: Annotated[
        tuple[SwitchTarget, ...],
        Meta(max_length=MAX_SWITCHES, description="Servers to disable."),
    ] = ()
    subjects: Annotated[
        tuple[SwitchTarget, ...],
        Meta(
            max_length=MAX_SWITCHES,
            description="Callers to disable, by subject or id.",
        ),
    ] = ()
    all: Annotated[bool, Meta(description="Disable everything but operator tools.")] = False


class KillSwitchSettings(KillSwitchTable, frozen=True, kw_only=True):
    """The table, with the line of each entry by key and name."""

    lines: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


def check_kill_switch(tree: Table, report: ErrorCollector) -> None:
    """Report unknown servers; values of wrong type are skipped."""
    servers = get_table(tree, "servers")
    for index, name in enumerate(_listed_names(get_table(tree, "kill_switch"), "servers")):
        if isinstance(name, str) and name not in servers:
            close = closest_match(name, servers)
            fix = f"did you mean {quote(close)}?" if close else "name a server from [servers]"
            path = ("kill_switch", "servers", index)
            report.add_error(path, f"there is no server {quote(name)}", fix)


def resolve_kill_switch(tree: Table, _: ResolveContext, report: ErrorCollector) -> Table:
    """Return the table with the line of each entry."""
    table = get_table(tree, "kill_switch")
    found: dict[tuple[str, str], int] = {}
    for key in SWITCH_LISTS:
        for index, name in enumerate(_listed_names(table, key)):
            place = report.locator.find_key(("kill_switch", key, index))
            # Of equal names the first line is shown.
            found.setdefault((key, str(name)), place.line)
    if table.get("all"):
        found["all", ""] = report.locator.find_key(("kill_switch", "all")).line
    return table | {"lines": found}


def _listed_names(table: Table, key: str) -> list[object]:
    named: object = table.get(key)
    return cast("list[object]", named) if isinstance(named, list) else []


_MAX_COUNT = 1_000_000_000
# Names of roles are short: `dve` differs from `dev` in a third of its characters.
_ROLE_CUTOFF = 0.6

LimitPattern = Annotated[
    str, text_format(WILDCARD_PATTERN, "a name, with * and ? for what may vary", 128)
]
SubjectPattern = Annotated[
    str,
    text_format(r"^\S([\s\S]*\S)?$", "up to 256 characters, without white space around them", 256),
]
LimitCount = Annotated[int, Meta(ge=1, le=_MAX_COUNT)]


class SubjectLimitTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of each subject; absent keys mean no limit."""

    rpm: Annotated[LimitCount | None, Meta(description=("Calls per minute of each subject."))] = (
        None
    )
    concurrent: Annotated[
        LimitCount | None,
        Meta(description="Calls in flight of each subject."),
    ] = None


class LimitTable(SubjectLimitTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of each subject and of all together; absent keys mean no limit."""

    total_rpm: Annotated[
        LimitCount | None, Meta(description="Calls per minute of all subjects.")
    ] = None
    total_concurrent: Annotated[
        LimitCount | None, Meta(description="Calls in flight of all subjects.")
    ] = None


class LimitsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of calls; without this table nothing is limited."""

    default_rpm: Annotated[
        int,
        Meta(
            ge=0,
            le=_MAX_COUNT,
            description=(
                "Calls per minute of each subject and tool, unless tools sets it; 0 for no limit."
            ),
        ),
    ] = 1000
    requests_rpm: Annotated[
        int,
        Meta(
            ge=0,
            le=_MAX_COUNT,
            description=(
                "Lists, pings, notifications and other messages per minute of each subject; "
                "0 for no limit."
            ),
        ),
    ] = 1000
    max_concurrent: Annotated[
        LimitCount | None,
        Meta(
            description=(
                "Calls in flight of each subject without an entry in subjects. Default: no limit."
            )
        ),
    ] = None
    tools: Annotated[
        dict[LimitPattern, LimitCount | LimitTable],
        Meta(description="Limits by tool, or by a pattern; a number is rpm."),
    ] = field(default_factory=dict[str, int | LimitTable])
    servers: Annotated[
        dict[LimitPattern, LimitCount | LimitTable],
        Meta(description="Limits by server, or by a pattern; a number is rpm."),
    ] = field(default_factory=dict[str, int | LimitTable])
    subjects: Annotated[
        dict[SubjectPattern, LimitCount | SubjectLimitTable],
        Meta(description="Limits by subject, or by a pattern; a number is rpm."),
    ] = field(default_factory=dict[str, int | SubjectLimitTable])
    roles: Annotated[
        dict[SubjectPattern, LimitCount | LimitTable],
        Meta(description="Limits by role; a number is rpm."),
    ] = field(default_factory=dict[str, int | LimitTable])


def check_limits(tree: Table, report: ErrorCollector) -> None:
    """Report limits of unknown servers, and note those of unknown roles."""
    servers, limits = get_table(tree, "servers"), get_table(tree, "limits")
    for name in get_table(limits, "servers"):
        if name not in servers and not set(name) & set("*?"):
            report.add_error(
                ("limits", "servers", name), "there is no server with this name", "correct it"
            )
    for name in get_table(limits, "roles"):
        _check_role_name(name, ("limits", "roles", name), tree, report)


def _check_role_name(name: str, path: KeyPath, tree: Table, report: ErrorCollector) -> None:
    """Note a role without a table. Without any role tables, every role of a token is valid."""
    roles = get_table(tree, "roles")
    if roles and name not in roles:
        other = closest_match(name, roles, cutoff=_ROLE_CUTOFF)
        fix = f"did you mean {quote(other)}?" if other else "check its spelling"
        report.add_note(path, f"there is no [roles.{quote(name)}]", fix)


_NAME_PATTERN = r"^\S[^\x00-\x1f]*$"
RoleName = Annotated[
    str, text_format(_NAME_PATTERN, "the name of a role, up to 128 characters", 128)
]
NamePattern = Annotated[
    str,
    text_format(
        _NAME_PATTERN, "a name of up to 128 characters, with * and ? for what may vary", 128
    ),
]
_FEATURE_FORMAT = (
    r"^[^\s\x00-\x1f]+$",
    "the name of a tool, or a URI, with * and ? for what may vary",
    512,
)
FeaturePattern = Annotated[str, text_format(*_FEATURE_FORMAT)]
SinglePattern = Annotated[str, text_format_in_union(*_FEATURE_FORMAT)]
RoleNames = Annotated[tuple[RoleName, ...], Meta(min_length=1)]
NamePatterns = Annotated[tuple[NamePattern, ...], Meta(min_length=1)]
ServerNames = Annotated[tuple[ServerName, ...], Meta(min_length=1)]
FeaturePatterns = Annotated[tuple[FeaturePattern, ...], Meta(min_length=1)]
FeatureKindName = Literal["tool", "prompt", "resource", "template"]
AnnotationName = Literal["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
ConditionText = Annotated[
    str,
    text_format(
        NOT_BLANK_PATTERN,
        f"a condition of up to {MAX_CONDITION_LENGTH} characters",
        MAX_CONDITION_LENGTH,
    ),
]
DenyMessage = Annotated[
    str,
    text_format(
        r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$",
        "a sentence of up to 500 characters, on one line",
        500,
    ),
]


class RoleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What callers with a role may do."""

    permissions: Annotated[
        tuple[Permission, ...],
        Meta(description="What the role permits."),
    ] = ()
    allowed_tools: Annotated[
        tuple[FeaturePattern, ...] | None,
        Meta(description="The only tools that the role may call. Default: permissions decide."),
    ] = None
    denied_tools: Annotated[
        tuple[FeaturePattern, ...],
        Meta(description="Tools that are always hidden from the role."),
    ] = ()


class RuleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule; the first that matches decides."""

    allow: Annotated[
        SinglePattern | FeaturePatterns | None,
        Meta(description="A pattern, or a list of patterns, to allow."),
    ] = None
    deny: Annotated[
        SinglePattern | FeaturePatterns | None,
        Meta(description="A pattern, or a list of patterns, to deny."),
    ] = None
    roles: Annotated[
        RoleNames | None, Meta(description="Match callers with one of these roles.")
    ] = None
    subjects: Annotated[
        NamePatterns | None, Meta(description="Match these subjects, by pattern.")
    ] = None
    clients: Annotated[
        NamePatterns | None,
        Meta(description="Match the client's own name, by pattern."),
    ] = None
    servers: Annotated[ServerNames | None, Meta(description="Match features of these servers.")] = (
        None
    )
    kinds: Annotated[
        Annotated[tuple[FeatureKindName, ...], Meta(min_length=1)] | None,
        Meta(description="Match features of these kinds. Default: all."),
    ] = None
    annotations: Annotated[
        Annotated[dict[AnnotationName, bool], Meta(min_length=1)] | None,
        Meta(description="Match tools with these annotations."),
    ] = None
    when: Annotated[
        ConditionText | None, Meta(description="Match if this CEL condition holds.")
    ] = None
    message: Annotated[
        DenyMessage | None,
        Meta(description="What callers who see the tool are told if the rule denies."),
    ] = None


class RoleSettings(RoleTable, frozen=True, kw_only=True):
    """A role and its name."""

    name: str


class RuleSettings(RuleTable, frozen=True, kw_only=True):
    """A rule, as the gateway uses it."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of features that it matches."""
        found = self.allow if self.allow is not None else self.deny
        return (found,) if isinstance(found, str) else found or ()

    @property
    def required_annotations(self) -> tuple[tuple[str, bool], ...]:
        """The annotations that tools must have."""
        return tuple((self.annotations or {}).items())


class PolicySettings(Struct, frozen=True, kw_only=True):
    """The roles and rules of the file, with their lines by path."""

    roles: tuple[RoleSettings, ...] = ()
    rules: tuple[RuleSettings, ...] = ()
    # Apart from the rules: an added comment moves lines, but is no change of the policy.
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict[KeyPath, int])

    def role_warnings(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return a warning for each role that has no table and is in no rule.

        If there is neither, roles decide nothing, and there are no warnings.
        """
        named = (name for rule in self.rules for name in rule.roles or ())
        known = dict.fromkeys((*(role.name for role in self.roles), *named))
        return tuple(
            f"there is no role {quote(name)} in the configuration; {_role_fix(name, known)}"
            for name in dict.fromkeys(names)
            if known and name not in known
        )


def _role_fix(name: str, known: Iterable[str]) -> str:
    other = closest_match(name, known, cutoff=_ROLE_CUTOFF)
    return f"did you mean {quote(other)}?" if other else f"roles are {', '.join(known)}"


RolesField = Annotated[dict[RoleName, RoleTable], Meta(description="Roles, by name.")]
RulesField = Annotated[
    tuple[RuleTable, ...],
    Meta(
        description="Rules, in order: the first that matches decides.",
        extra={"tables": "write [[policy]], in double brackets"},
    ),
]


def check_policy(tree: Table, report: ErrorCollector) -> None:
    """Report inconsistent rules; values of wrong type are skipped, one by one."""
    for number, value in enumerate(_rule_tables(tree)):
        if (rule := as_table(value)) is not None:
            _check_rule(rule, ("policy", number), tree, report)


def resolve_policy(tree: Table, _: ResolveContext, report: ErrorCollector) -> Table:
    """Return roles and rules, and the lines of each rule and of each entry of a role."""
    roles, rules = get_table(tree, "roles"), _rule_tables(tree)
    paths: list[KeyPath] = [("policy", number) for number in range(len(rules))]
    for name, role in roles.items():
        for key, values in (as_table(role) or {}).items():
            entries = cast("list[object]", values) if isinstance(values, list) else []
            paths += [("roles", name, key, number) for number in range(len(entries))]
    return {
        "roles": [(as_table(value) or {}) | {"name": name} for name, value in roles.items()],
        "rules": rules,
        "lines": {path: report.locator.find_key(path).line for path in paths},
    }


def _rule_tables(tree: Table) -> list[Any]:
    found = tree.get("policy")
    return cast("list[Any]", found) if isinstance(found, list) else []


def _check_rule(rule: Table, path: KeyPath, tree: Table, report: ErrorCollector) -> None:
    """Check a rule as it was read: a mistake in one key hides none in another."""
    _check_rule_effect(rule, path, report)
    servers = get_table(tree, "servers")
    for number, server in _listed_texts(rule, "servers"):
        if server not in servers and _SERVER_NAME.fullmatch(server):  # others were reported
            other = closest_match(server, servers)
            fix = f'did you mean "{other}"?' if other else "name one of [servers.NAME]"
            report.add_error((*path, "servers", number), f"there is no server {quote(server)}", fix)
    for number, name in _listed_texts(rule, "roles"):
        _check_role_name(name, (*path, "roles", number), tree, report)
    kinds = [kind for _, kind in _listed_texts(rule, "kinds")]
    if rule.get("annotations") and kinds and all(kind in _OTHER_KINDS for kind in kinds):
        error = "only tools have annotations, and the rule is about other kinds"
        report.add_error((*path, "annotations"), error, 'leave it out, or add "tool" to kinds')
    if isinstance(condition := rule.get("when"), str) and _is_valid_text(condition):
        _check_condition(condition, (*path, "when"), report)


def _check_rule_effect(rule: Table, path: KeyPath, report: ErrorCollector) -> None:
    """Report a rule that does not either allow or deny."""
    is_misspelt = any(
        closest_match(key, _EFFECTS) for key in rule if key not in RuleTable.__struct_fields__
    )
    given = [key for key in _EFFECTS if key in rule]
    if len(given) != 1 and not (is_misspelt and not given):
        found = "it has both" if given else "it has neither"
        report.add_error(
            path, f"expected either allow or deny: {found}", 'write allow = "…" or deny = "…"'
        )
    if "message" in rule and "allow" in given:
        report.add_error((*path, "message"), "the rule allows", "leave it out, or write deny")


def _check_condition(text: str, path: KeyPath, report: ErrorCollector) -> None:
    try:
        # Compiled only to report mistakes with the file; app.build compiles it for use.
        Condition(text)
    except ConditionError as error:
        place = f"in line {error.line}, column {error.column} of the condition"
        report.add_error(path, f"{error.reason}, {place}", "see the reference for conditions")
    except ConditionsUnavailable as error:
        fix = "install it: pip install 'trunkline[conditions]', or remove the condition"
        report.add_error(path, str(error), fix)


def _listed_texts(table: Table, key: str) -> list[tuple[int, str]]:
    """Return the texts of a list that are not blank, with their indexes."""
    found = enumerate(_listed_names(table, key))
    return [(number, each) for number, each in found if isinstance(each, str) and each.strip()]


def _is_valid_text(condition: str) -> bool:
    # Longer and blank texts were reported.
    return bool(condition.strip()) and len(condition) <= MAX_CONDITION_LENGTH


_EFFECTS = ("allow", "deny")
_SERVER_NAME = re.compile("[A-Za-z0-9_-]{1,40}")
_OTHER_KINDS = ("prompt", "resource", "template")

MAX_EXPECTATIONS_BYTES = 1024 * 1024

FeatureName = Annotated[
    str, Meta(pattern=r"^\S+$", extra={"expected": "the name of a tool, or a URI"})
]


class ExpectationTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call and its expected outcome."""

    tool: FeatureName
    expect: Literal["allow", "deny", "hidden"]
    subject: str = "anyone"
    roles: tuple[RoleName, ...] = ()
    client: str = ""
    kind: FeatureKindName = "tool"
    # The server of the tool; by its prefix unless set.
    server: str | None = None
    # The annotations of the tool, since no server is started.
    annotations: dict[AnnotationName, bool] = field(default_factory=dict[AnnotationName, bool])
    # The beginning of the deciding rule's place: `policy[2]` or `role dev`.
    rule: str | None = None


class Expectation(ExpectationTable, frozen=True, kw_only=True):
    """An expectation with its arguments and its line."""

    line: int
    args: dict[str, Any] = field(default_factory=dict[str, Any])


_EXPECTATION_TYPE = msgspec.inspect.type_info(ExpectationTable)


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """Return the expectations of the file at `path`; raises ConfigErrors."""
    parsed = parse_toml(read_text(path, MAX_EXPECTATIONS_BYTES, "check the name"), str(path))
    report = parsed.errors
    tree = as_table(parsed.tree) or {}
    for key in tree:
        if key != "expect":
            report.add_error((key,), "unknown key", "write [[expect]], one for each call")
    tables = tree.get("expect", [])
    if not isinstance(tables, list):
        report.add_error(("expect",), "expected a list of tables", "write [[expect]]")
        tables = []
    numbered = enumerate(cast("list[Any]", tables))
    found = [_read_expectation(table, number, report) for number, table in numbered]
    report.raise_if_any()
    return msgspec.convert(found, tuple[Expectation, ...])


def _read_expectation(value: Any, number: int, report: ErrorCollector) -> dict[str, Any]:
    """Return the table of one expectation; report errors."""
    path = ("expect", number)
    table = dict(as_table(value) or {})
    args = table.pop("args", {})  # any JSON value
    validate(
        table if as_table(value) is not None else value, _EXPECTATION_TYPE, path, report.add_error
    )
    if as_table(args) is None:
        report.add_error((*path, "args"), "expected a table", 'write args = { path = "/tmp" }')
    return table | {"args": args, "line": report.locator.find_key(path).line}
