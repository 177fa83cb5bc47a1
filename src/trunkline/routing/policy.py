"""Policy: decides who may call what, by ordered rules and then by roles.

    Subject, Target ──evaluate──> PolicyDecision: hidden | visible, denied | allowed | conditional
                                        └──resolve(arguments)──> PolicyResult, with the rule

    1. `denied_tools` of any of the caller's roles   hides, before any rule
    2. the rules, in order                           the first that matches decides
    3. `allowed_tools` and permissions of the roles  one of them suffices
    4. otherwise                                     hidden

It is pure, and knows callers and catalogue entries only as Subject and Target.

Rules upheld here:
1. The first matching rule decides. Later rules change nothing.
2. If there is any rule or role, features that are not allowed are hidden.
3. A condition that fails never allows: a denying rule then denies, an allowing rule does not match.
   A condition that could take too long for these arguments denies, even if its rule allows.
4. A feature is visible if and only if some call of it could be allowed, or a role of the caller may
   read but not execute it.
5. Equal subjects and targets get equal decisions, independent of earlier ones.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from trunkline.mcp.features import DEFAULT_HINTS, KIND_NAMES, FeatureKind
from trunkline.routing.conditions import (
    NO_ARGUMENTS,
    Condition,
    ConditionFailed,
    StrictArguments,
    TooExpensive,
)
from trunkline.routing.naming import matches_any_pattern, matches_pattern

Permission = Literal["*", "tools.read", "tools.execute", "prompts.read", "resources.read"]
RoleEntryKey = Literal["permissions", "allowed_tools", "denied_tools"]

# The kinds that are called with arguments.
KINDS_WITH_ARGUMENTS = frozenset((FeatureKind.TOOL, FeatureKind.PROMPT))

# Longer names and URIs are hidden without evaluation. No server lists longer ones.
MAX_TARGET_NAME_LENGTH = 8192

NO_RULE_REASON = "no rule allows it"
NAME_TOO_LONG_REASON = f"its name has more than {MAX_TARGET_NAME_LENGTH} characters"
TOO_LARGE_EXPLANATION = "its arguments are too large for a rule that reads them"
OPEN_POLICY_REASON = "there are no rules"

_REQUIRED_PERMISSIONS: Mapping[FeatureKind, Permission] = {
    FeatureKind.TOOL: "tools.execute",
    FeatureKind.PROMPT: "prompts.read",
    FeatureKind.RESOURCE: "resources.read",
    FeatureKind.TEMPLATE: "resources.read",
}


class PolicyOutcome(StrEnum):
    """What happens to a call."""

    ALLOW = "allow"
    DENY = "deny"
    """The call is rejected, and the caller may see the feature."""
    HIDDEN = "hidden"
    """For the caller the feature does not exist."""


class PolicyResult(NamedTuple):
    """An outcome, the rule that gave it, a note for operators, and what the caller may know."""

    outcome: PolicyOutcome
    rule: str
    note: str = ""
    explanation: str = ""


class Subject(NamedTuple):
    """The caller, as far as rules can tell."""

    roles: tuple[str, ...] = ()
    subject: str = ""
    client: str = ""
    """The client's own name for itself, which is not verified."""


class Target(NamedTuple):
    """The feature, as far as rules can tell."""

    kind: FeatureKind
    name: str
    backend: str
    native_uri: str = ""
    """The server's own URI of a resource, if it differs from the name."""
    hints: Mapping[str, bool] = DEFAULT_HINTS


class RoleEntry(NamedTuple):
    """A permission or a pattern of a role, with its key in the role's table."""

    key: RoleEntryKey
    text: str


class Role(NamedTuple):
    """The permissions of a role."""

    permissions: frozenset[Permission] = frozenset()
    denied: tuple[str, ...] = ()
    """Patterns of the tools that the role may not even see."""
    allowed: tuple[str, ...] | None = None
    """Patterns of the only tools that the role may call; None if its permissions decide."""
    locations: Mapping[RoleEntry, str] = {}  # immutable: the default is shared
    """Where the configuration has each entry."""

    def denying_entry(self, target: Target) -> RoleEntry | None:
        """Return the entry that hides a feature from the role, None if there is none."""
        return _matching_entry("denied_tools", self.denied, target)

    def allowing_entry(self, target: Target) -> RoleEntry | None:
        """Return the entry that lets the role use a feature, None if there is none."""
        if self.allowed is not None and target.kind is FeatureKind.TOOL:
            return _matching_entry("allowed_tools", self.allowed, target)
        needed = _REQUIRED_PERMISSIONS[target.kind]
        found = next((each for each in (needed, "*") if each in self.permissions), None)
        return None if found is None else RoleEntry("permissions", found)

    def listing_entry(self, target: Target) -> RoleEntry | None:
        """Return the entry that lets the role see a feature that it may not use."""
        reads = target.kind is FeatureKind.TOOL and "tools.read" in self.permissions
        return RoleEntry("permissions", "tools.read") if reads else None


def _matching_entry(
    key: RoleEntryKey, patterns: tuple[str, ...], target: Target
) -> RoleEntry | None:
    """Return the first pattern that matches a tool."""
    if target.kind is not FeatureKind.TOOL:
        return None
    found = (each for each in patterns if matches_pattern(each, target.name))
    return next((RoleEntry(key, each) for each in found), None)


class Rule(NamedTuple):
    """One rule: what it applies to, and whether it allows. An empty criterion applies to all."""

    allows: bool
    patterns: tuple[str, ...]
    location: str = ""
    roles: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    kinds: frozenset[FeatureKind] = frozenset()
    hints: tuple[tuple[str, bool], ...] = ()
    """Only tools have hints."""
    condition: Condition | None = None
    message: str = ""
    """What callers who see the feature are told if the rule denies."""

    def applies_to(self, subject: Subject, target: Target) -> bool:
        """Return whether the rule applies, apart from its condition."""
        return self.applies_to_target(target) and (
            (not self.roles or not frozenset(self.roles).isdisjoint(subject.roles))
            and (not self.subjects or matches_any_pattern(self.subjects, subject.subject))
            and (not self.clients or matches_any_pattern(self.clients, subject.client))
        )

    def applies_to_target(self, target: Target) -> bool:
        """Return whether the rule applies for some callers, apart from its condition."""
        return (
            matches_any_pattern(self.patterns, target.name)
            or (target.native_uri != "" and matches_any_pattern(self.patterns, target.native_uri))
        ) and (
            (not self.kinds or target.kind in self.kinds)
            and (not self.backends or target.backend in self.backends)
            and (not self.hints or self._has_hints(target))
        )

    def _has_hints(self, target: Target) -> bool:
        return target.kind is FeatureKind.TOOL and all(
            target.hints[name] is is_so for name, is_so in self.hints
        )

    @property
    def variables(self) -> frozenset[str]:
        """The properties of callers and features that it reads, except roles and names."""
        criteria = {"subject": self.subjects, "client": self.clients}
        criteria |= {"backend": self.backends, "annotations": self.hints}
        read = {name for name, wanted in criteria.items() if wanted}
        return frozenset(read) if self.condition is None else self.condition.variables | read


# Module constants, because up to Python 3.11 the lookup of an enum member is slow.
ALLOW, HIDDEN = PolicyOutcome.ALLOW, PolicyOutcome.HIDDEN


class PolicyDecision(NamedTuple):
    """What the policy says about a caller and a feature before the arguments are known."""

    final: PolicyResult
    """Holds if no condition decides."""
    conditional: tuple[Rule, ...] = ()
    """The rules that need arguments, in order."""
    facts: Mapping[str, Any] = {}  # immutable: the default is shared

    @property
    def is_visible(self) -> bool:
        """Whether the caller may see the feature."""
        return self.final.outcome is not HIDDEN

    def resolve(self, arguments: StrictArguments = NO_ARGUMENTS) -> PolicyResult:
        """Return the result for a call with these arguments."""
        if not self.conditional:
            return self.final
        for rule in self.conditional:
            try:
                matches, note = _rule_matches(rule, self.facts, arguments)
            except TooExpensive as error:
                note = f"its condition was not evaluated: {error}"
                return PolicyResult(PolicyOutcome.DENY, rule.location, note, TOO_LARGE_EXPLANATION)
            if matches:
                outcome = PolicyOutcome.ALLOW if rule.allows else PolicyOutcome.DENY
                return PolicyResult(outcome, rule.location, note, rule.message)
        return self.final


class Policy:
    """Decides who may call what."""

    def __init__(self, rules: Iterable[Rule] = (), roles: Mapping[str, Role] | None = None) -> None:
        self.rules = tuple(rules)
        self.roles = dict(roles or {})
        self.variables = frozenset[str]().union(*(rule.variables for rule in self.rules))
        """What the rules read, except roles and names. Equal values give equal decisions."""

    @property
    def is_open(self) -> bool:
        """Whether there are no rules and roles. Then every caller may call everything."""
        return not self.rules and not self.roles

    def reads_arguments(self, target: Target) -> bool:
        """Return whether a rule reads the arguments of a feature, for any caller."""
        return any(
            _needs_arguments(rule, target) and rule.applies_to_target(target) for rule in self.rules
        )

    def evaluate(self, subject: Subject, target: Target) -> PolicyDecision:
        """Return what the policy says about a caller and a feature."""
        if self.is_open:
            return PolicyDecision(PolicyResult(PolicyOutcome.ALLOW, OPEN_POLICY_REASON))
        if len(target.name) > MAX_TARGET_NAME_LENGTH:
            return PolicyDecision(PolicyResult(PolicyOutcome.HIDDEN, NAME_TOO_LONG_REASON))
        denied = self._denied(subject, target)
        if denied is not None:
            return PolicyDecision(denied)
        facts = _facts(subject, target)
        conditional: list[Rule] = []
        for rule in self.rules:
            if not rule.applies_to(subject, target):
                continue
            if _needs_arguments(rule, target):
                conditional.append(rule)
                continue
            try:
                matches, note = _rule_matches(rule, facts, NO_ARGUMENTS)
            except TooExpensive as error:  # the client chose a long name
                return PolicyDecision(PolicyResult(HIDDEN, rule.location, str(error)))
            if matches:
                outcome = PolicyOutcome.ALLOW if rule.allows else PolicyOutcome.HIDDEN
                result = PolicyResult(outcome, rule.location, note, rule.message)
                return _make_decision(result, conditional, facts)
        return _make_decision(self._permitted(subject, target), conditional, facts)

    def _denied(self, subject: Subject, target: Target) -> PolicyResult | None:
        for name, role in self._roles_of(subject):
            if (entry := role.denying_entry(target)) is not None:
                return PolicyResult(PolicyOutcome.HIDDEN, _describe_entry(name, entry, role))
        return None

    def _permitted(self, subject: Subject, target: Target) -> PolicyResult:
        """Apply what the caller's roles allow, when no rule has decided."""
        roles = self._roles_of(subject)
        for name, role in roles:
            if (entry := role.allowing_entry(target)) is not None:
                return PolicyResult(PolicyOutcome.ALLOW, _describe_entry(name, entry, role))
        for name, role in roles:
            if (entry := role.listing_entry(target)) is not None:
                return PolicyResult(PolicyOutcome.DENY, _describe_entry(name, entry, role))
        return PolicyResult(PolicyOutcome.HIDDEN, NO_RULE_REASON)

    def _roles_of(self, subject: Subject) -> list[tuple[str, Role]]:
        return [(name, self.roles[name]) for name in subject.roles if name in self.roles]


def _needs_arguments(rule: Rule, target: Target) -> bool:
    reads_arguments = rule.condition is not None and "args" in rule.condition.variables
    return reads_arguments and target.kind in KINDS_WITH_ARGUMENTS


def _rule_matches(
    rule: Rule, facts: Mapping[str, Any], arguments: StrictArguments
) -> tuple[bool, str]:
    """Return whether a rule's condition holds, and why it could not be evaluated if so."""
    if rule.condition is None:
        return True, ""
    try:
        return rule.condition.holds(facts, arguments), ""
    except TooExpensive:
        raise
    except ConditionFailed as error:
        return not rule.allows, f"its condition failed: {error}"


def _make_decision(
    final: PolicyResult, conditional: list[Rule], facts: Mapping[str, Any]
) -> PolicyDecision:
    hidden = final.outcome is PolicyOutcome.HIDDEN
    if not conditional or (hidden and not any(rule.allows for rule in conditional)):
        return PolicyDecision(final)  # the same for all arguments
    if hidden:
        final = final._replace(outcome=PolicyOutcome.DENY)  # visible: some arguments are allowed
    return PolicyDecision(final, tuple(conditional), facts)


def _facts(subject: Subject, target: Target) -> dict[str, Any]:
    return {
        "tool": target.name,
        "backend": target.backend,
        "kind": KIND_NAMES[target.kind],
        "subject": subject.subject,
        "role": subject.roles[0] if subject.roles else "",
        "roles": list(subject.roles),
        "client": subject.client,
        "annotations": dict(target.hints) if target.kind is FeatureKind.TOOL else {},
    }


def _describe_entry(role_name: str, entry: RoleEntry, role: Role) -> str:
    what = entry.text if entry.key == "permissions" else entry.key
    location = role.locations.get(entry)
    return f"role {role_name}: {what}{f' ({location})' if location else ''}"
