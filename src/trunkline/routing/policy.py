"""Policy: who may call what; ordered rules, roles behind them, and otherwise nobody.

    Who, What ──stand──> Standing: hidden | visible, not allowed | allowed | it depends
                             └──judge(arguments)──> Verdict, with the rule that gave it

    1. `denied_tools` of any of the caller's roles   hides, whatever else is said
    2. the rules, in their order                     the first that matches decides
    3. the permissions of the caller's roles         what any of them permits
    4. nothing of these                              hides

Refuses to know callers and catalogues as others do: it is told Who and What, and nothing moves.

Rules upheld here:
1. The first rule that matches decides; what comes after it changes nothing.
2. Once there is any rule or role, what nobody allows is hidden.
3. A condition without an answer never allows: a rule that denies then denies, and one that allows
   does not match.
4. An offer is visible if and only if some call of it could be allowed, or one of the caller's roles
   may read what it may not call.
5. The same question has the same answer, whoever asked before.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from trunkline.mcp.annotations import HINTS
from trunkline.mcp.offer import Kind
from trunkline.routing.conditions import Condition, ConditionFailed
from trunkline.routing.legible import NO_ARGUMENTS, Arguments
from trunkline.routing.pattern import fits_any

Permission = Literal["*", "tools.read", "tools.execute", "prompts.read", "resources.read"]

KIND_NAMES: Mapping[Kind, str] = {kind: kind.name.lower() for kind in Kind}
"""How rules and conditions name the kinds of offers."""

WITH_ARGUMENTS = frozenset((Kind.TOOL, Kind.PROMPT))
"""The kinds of offers that a call gives arguments to."""

MAX_NAME = 8192
"""How long a name or a URI may be to be looked at: longer ones than any server lists."""

NO_RULE = "no rule allows it"
TOO_LONG = f"its name has more than {MAX_NAME} characters"
OPEN = "there are no rules"

_NEEDED: Mapping[Kind, Permission] = {
    Kind.TOOL: "tools.execute",
    Kind.PROMPT: "prompts.read",
    Kind.RESOURCE: "resources.read",
    Kind.TEMPLATE: "resources.read",
}


class Outcome(StrEnum):
    """What becomes of a call."""

    ALLOW = "allow"
    DENY = "deny"
    """It is refused, and the caller may know of the offer."""
    HIDDEN = "hidden"
    """To the caller there is no such offer."""


class Verdict(NamedTuple):
    """An outcome, the rule that gave it, and what else there is to say to an operator."""

    outcome: Outcome
    rule: str
    note: str = ""


class Who(NamedTuple):
    """Who asks, as far as rules can tell."""

    roles: tuple[str, ...] = ()
    subject: str = ""
    client: str = ""
    """What the client calls itself: its word, and no more."""


class What(NamedTuple):
    """What is asked for, as far as rules can tell."""

    kind: Kind
    name: str
    backend: str
    native: str = ""
    """The URI that the server knows a resource by, where that is another."""
    hints: Mapping[str, bool] = HINTS


class Role(NamedTuple):
    """What those may do who have it."""

    permissions: frozenset[Permission] = frozenset()
    denied: tuple[str, ...] = ()
    """The tools, by patterns, that they may not even see."""
    place: str = ""

    def permits(self, permission: Permission) -> bool:
        """Tell whether it lets do this: whoever may execute may read."""
        found = self.permissions
        executes = permission == "tools.read" and "tools.execute" in found
        return executes or permission in found or "*" in found


class Rule(NamedTuple):
    """One rule: what it is about, and whether it allows it. What is empty is about all."""

    allows: bool
    patterns: tuple[str, ...]
    place: str = ""
    roles: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    kinds: frozenset[Kind] = frozenset()
    hints: tuple[tuple[str, bool], ...] = ()
    """Of tools alone: nothing else has any."""
    condition: Condition | None = None

    def concerns(self, who: Who, what: What) -> bool:
        """Tell whether it is about this, but for its condition."""
        return (
            fits_any(self.patterns, what.name)
            or (what.native != "" and fits_any(self.patterns, what.native))
        ) and (
            (not self.kinds or what.kind in self.kinds)
            and (not self.backends or what.backend in self.backends)
            and (not self.roles or not frozenset(self.roles).isdisjoint(who.roles))
            and (not self.subjects or fits_any(self.subjects, who.subject))
            and (not self.clients or fits_any(self.clients, who.client))
            and (not self.hints or self._has_hints(what))
        )

    def _has_hints(self, what: What) -> bool:
        return what.kind is Kind.TOOL and all(
            what.hints[name] is is_so for name, is_so in self.hints
        )

    @property
    def reads(self) -> frozenset[str]:
        """What of callers and offers it looks at, beside roles and names."""
        looks = {"subject": self.subjects, "client": self.clients}
        looks |= {"backend": self.backends, "annotations": self.hints}
        asked = frozenset[str]() if self.condition is None else self.condition.reads
        return asked | {name for name, wanted in looks.items() if wanted}


ALLOW, HIDDEN = Outcome.ALLOW, Outcome.HIDDEN
"""By names of their own: up to Python 3.11 a member is slow to find in its class."""


class Standing(NamedTuple):
    """What a caller is to an offer, before it says anything about arguments."""

    final: Verdict
    """What holds if none of the conditions decides."""
    conditional: tuple[Rule, ...] = ()
    """The rules that wait for arguments, in their order."""
    facts: Mapping[str, Any] = {}  # never changed, and none are needed without conditions

    @property
    def visible(self) -> bool:
        """Tell whether the caller may know of the offer."""
        return self.final.outcome is not HIDDEN

    def judge(self, arguments: Arguments = NO_ARGUMENTS) -> Verdict:
        """Say what becomes of a call with these arguments."""
        if not self.conditional:
            return self.final
        for rule in self.conditional:
            matches, note = _asked(rule, self.facts, arguments)
            if matches:
                return Verdict(Outcome.ALLOW if rule.allows else Outcome.DENY, rule.place, note)
        return self.final


class Policy:
    """Says who may call what."""

    def __init__(self, rules: Iterable[Rule] = (), roles: Mapping[str, Role] | None = None) -> None:
        self.rules = tuple(rules)
        self.roles = dict(roles or {})
        self.reads = frozenset[str]().union(*(rule.reads for rule in self.rules))
        """What it looks at, beside roles and names: nothing else tells two callers apart."""

    @property
    def is_open(self) -> bool:
        """Tell whether there is nothing in it: then everybody may call everything."""
        return not self.rules and not self.roles

    def stand(self, who: Who, what: What) -> Standing:
        """Say what a caller is to an offer."""
        if self.is_open:
            return Standing(Verdict(Outcome.ALLOW, OPEN))
        if len(what.name) > MAX_NAME:
            return Standing(Verdict(Outcome.HIDDEN, TOO_LONG))
        denied = self._denied(who, what)
        if denied is not None:
            return Standing(denied)
        facts = _facts(who, what)
        conditional: list[Rule] = []
        for rule in self.rules:
            if not rule.concerns(who, what):
                continue
            if _waits(rule, what):
                conditional.append(rule)
                continue
            matches, note = _asked(rule, facts, NO_ARGUMENTS)
            if matches:
                outcome = Outcome.ALLOW if rule.allows else Outcome.HIDDEN
                return _standing(Verdict(outcome, rule.place, note), conditional, facts)
        return _standing(self._permitted(who, what), conditional, facts)

    def _denied(self, who: Who, what: What) -> Verdict | None:
        for name in who.roles if what.kind is Kind.TOOL else ():
            role = self.roles.get(name)
            if role is not None and fits_any(role.denied, what.name):
                return Verdict(Outcome.HIDDEN, _said(name, "denied_tools", role))
        return None

    def _permitted(self, who: Who, what: What) -> Verdict:
        """Say what the caller's roles permit, when no rule has decided."""
        roles = [(name, self.roles[name]) for name in who.roles if name in self.roles]
        needed = _NEEDED[what.kind]
        for name, role in roles:
            if role.permits(needed):
                said = needed if needed in role.permissions else "*"
                return Verdict(Outcome.ALLOW, _said(name, said, role))
        for name, role in roles:
            if what.kind is Kind.TOOL and role.permits("tools.read"):
                return Verdict(Outcome.DENY, _said(name, "tools.read", role))
        return Verdict(Outcome.HIDDEN, NO_RULE)


def _waits(rule: Rule, what: What) -> bool:
    """Tell whether only a call can say if a rule matches."""
    asked = rule.condition is not None and "args" in rule.condition.reads
    return asked and what.kind in WITH_ARGUMENTS


def _asked(rule: Rule, facts: Mapping[str, Any], arguments: Arguments) -> tuple[bool, str]:
    """Tell whether a rule matches that is about this, and why its condition failed if it did."""
    if rule.condition is None:
        return True, ""
    try:
        return rule.condition.holds(facts, arguments), ""
    except ConditionFailed as why:
        return not rule.allows, f"its condition failed: {why}"


def _standing(final: Verdict, conditional: list[Rule], facts: Mapping[str, Any]) -> Standing:
    hidden = final.outcome is Outcome.HIDDEN
    if not conditional or (hidden and not any(rule.allows for rule in conditional)):
        return Standing(final)  # whatever the arguments
    if hidden:
        final = final._replace(outcome=Outcome.DENY)  # what some arguments allow is no secret
    return Standing(final, tuple(conditional), facts)


def _facts(who: Who, what: What) -> dict[str, Any]:
    return {
        "tool": what.name,
        "backend": what.backend,
        "kind": KIND_NAMES[what.kind],
        "subject": who.subject,
        "role": who.roles[0] if who.roles else "",
        "roles": list(who.roles),
        "client": who.client,
        "annotations": dict(what.hints) if what.kind is Kind.TOOL else {},
    }


def _said(name: str, what: str, role: Role) -> str:
    return f"role {name}: {what}{role.place and f' ({role.place})'}"
