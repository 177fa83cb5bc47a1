"""Policy: rules in order, then roles, and otherwise hidden."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.mcp.features import DEFAULT_HINTS, FeatureKind
from trunkline.routing.conditions import NO_ARGUMENTS, Condition, StrictArguments
from trunkline.routing.policy import (
    MAX_TARGET_NAME_LENGTH,
    NAME_TOO_LONG_REASON,
    NO_RULE_REASON,
    OPEN_POLICY_REASON,
    Policy,
    PolicyDecision,
    PolicyOutcome,
    PolicyResult,
    Role,
    RoleEntry,
    Rule,
    Subject,
    Target,
)

ALLOW, DENY, HIDDEN = PolicyOutcome.ALLOW, PolicyOutcome.DENY, PolicyOutcome.HIDDEN
ANNA = Subject(("dev",), "anna", "claude-code")
READ = Target(FeatureKind.TOOL, "fs__read", "fs")
ADMIN = Role(frozenset({"*"}), locations={RoleEntry("permissions", "*"): "t.toml:1"})


def allow(*patterns: str, **more: Any) -> Rule:
    return Rule(True, patterns or ("*",), **more)


def deny(*patterns: str, **more: Any) -> Rule:
    return Rule(False, patterns or ("*",), **more)


def when(source: str) -> Condition:
    return Condition(source)


def arguments(**members: Any) -> StrictArguments:
    return StrictArguments(members, len(members) + 1)


def outcome(
    policy: Policy, a_subject: Subject = ANNA, a_target: Target = READ, **args: Any
) -> PolicyOutcome:
    return policy.evaluate(a_subject, a_target).resolve(arguments(**args)).outcome


# Rules


def test_without_rules_and_roles_all_callers_may_call_everything() -> None:
    assert Policy().is_open
    assert Policy().evaluate(ANNA, READ) == PolicyDecision(PolicyResult(ALLOW, OPEN_POLICY_REASON))


@pytest.mark.holds("M9")
def test_with_any_rule_what_is_not_allowed_is_hidden() -> None:
    for policy in (Policy([allow("other")]), Policy([deny("other")]), Policy(roles={"x": ADMIN})):
        decision = policy.evaluate(ANNA, READ)
        assert decision == PolicyDecision(PolicyResult(HIDDEN, NO_RULE_REASON))
        assert not decision.is_visible
        assert not policy.is_open


def test_the_first_rule_that_matches_decides_and_is_named() -> None:
    rules = [deny("fs__write_*", location="1"), allow("fs__*", location="2"), deny(location="3")]
    policy = Policy(rules)
    assert policy.evaluate(ANNA, READ).final == PolicyResult(ALLOW, "2")
    assert policy.evaluate(ANNA, READ._replace(name="fs__write_x")).final == PolicyResult(
        HIDDEN, "1"
    )
    assert policy.evaluate(ANNA, READ._replace(name="db__get")).final == PolicyResult(HIDDEN, "3")


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (allow("fs__read"), True),
        (allow("fs__?ead", "x"), True),
        (allow("x", "fs__*"), True),
        (allow("FS__READ"), False),
        (allow("fs__rea"), False),
        (allow("ﬁs__read"), False),
        (allow(roles=("dev",)), True),
        (allow(roles=("ops", "dev")), True),
        (allow(roles=("ops",)), False),
        (allow(subjects=("an*",)), True),
        (allow(subjects=("bert", "Anna")), False),
        (allow(clients=("claude-*",)), True),
        (allow(clients=("cursor",)), False),
        (allow(backends=("db", "fs")), True),
        (allow(backends=("db",)), False),
        (allow(kinds=frozenset({FeatureKind.TOOL})), True),
        (allow(kinds=frozenset({FeatureKind.PROMPT, FeatureKind.RESOURCE})), False),
        (allow(hints=(("readOnlyHint", False), ("destructiveHint", True))), True),
        (allow(hints=(("readOnlyHint", True),)), False),
        (allow(condition=when("tool == 'fs__read' && subject == 'anna'")), True),
        (allow(condition=when("client == 'other'")), False),
        (allow(roles=("dev",), subjects=("bert",)), False),
    ],
)
def test_a_rule_applies_if_all_its_criteria_match(rule: Rule, matches: bool) -> None:
    assert Policy([rule]).evaluate(ANNA, READ).is_visible is matches
    assert (outcome(Policy([rule])) is ALLOW) is matches


def test_a_rule_on_annotations_applies_only_to_tools() -> None:
    policy = Policy([deny(hints=(("destructiveHint", True),)), allow()])
    assert outcome(policy) is HIDDEN
    assert (
        outcome(policy, a_target=READ._replace(hints={**DEFAULT_HINTS, "destructiveHint": False}))
        is ALLOW
    )
    assert outcome(policy, a_target=READ._replace(kind=FeatureKind.PROMPT)) is ALLOW


def test_a_resource_matches_by_both_its_uris() -> None:
    marked = Target(FeatureKind.RESOURCE, "trunkline:b:file:///secret/x", "b", "file:///secret/x")
    assert outcome(Policy([deny("file:///secret/*"), allow()]), a_target=marked) is HIDDEN
    assert outcome(Policy([allow("file:///secret/*")]), a_target=marked) is ALLOW
    assert outcome(Policy([allow("file:///public/*")]), a_target=marked) is HIDDEN


def test_a_name_that_is_too_long_is_hidden() -> None:
    a_target = Target(FeatureKind.RESOURCE, "x:" + "a" * MAX_TARGET_NAME_LENGTH, "fs")
    assert Policy([allow()]).evaluate(ANNA, a_target) == PolicyDecision(
        PolicyResult(HIDDEN, NAME_TOO_LONG_REASON)
    )


# Conditions


def test_a_rule_that_reads_arguments_decides_per_call() -> None:
    condition = when("args.path.startsWith('/etc')")
    policy = Policy([deny(condition=condition, location="1"), allow(location="2")])
    decision = policy.evaluate(ANNA, READ)
    assert decision.is_visible
    assert decision.resolve(arguments(path="/etc/x")) == PolicyResult(DENY, "1")
    assert decision.resolve(arguments(path="/tmp/x")) == PolicyResult(ALLOW, "2")


def test_a_policy_knows_whether_a_rule_reads_the_arguments_of_a_feature() -> None:
    reads, prompt = when("args.x == 1"), Target(FeatureKind.RESOURCE, "fs__read", "fs")
    for rule in (
        deny("fs__read", condition=reads),
        allow(condition=reads, roles=("some",), subjects=("one",), clients=("another",)),
    ):
        policy = Policy([allow(), rule])
        assert policy.reads_arguments(READ)
        assert not policy.reads_arguments(prompt)
    for rule in (
        deny("fs__write", condition=reads),
        deny(condition=reads, backends=("git",)),
        deny(condition=when("subject == 'x'")),
        deny(),
    ):
        assert not Policy([rule]).reads_arguments(READ)


@pytest.mark.holds("M9")
def test_a_failing_condition_never_allows() -> None:
    condition = when("args.path.startsWith('/tmp')")
    allowing = Policy([allow(condition=condition, location="1")]).evaluate(ANNA, READ)
    denying = Policy([deny(condition=condition, location="1"), allow()]).evaluate(ANNA, READ)
    for args in (NO_ARGUMENTS, arguments(path=3), arguments(Path="/tmp")):
        assert allowing.resolve(args) == PolicyResult(DENY, NO_RULE_REASON)
        result = denying.resolve(args)
        assert result[:2] == (DENY, "1")
        assert result.note.startswith("its condition failed: ")
    assert allowing.resolve(arguments(path="/tmp/x")).outcome is ALLOW


def test_a_feature_that_is_only_denied_conditionally_is_hidden() -> None:
    denying = deny(condition=when("args.x == 1"), location="1")
    assert Policy([denying]).evaluate(ANNA, READ) == PolicyDecision(
        PolicyResult(HIDDEN, NO_RULE_REASON)
    )
    assert not Policy([denying, deny()]).evaluate(ANNA, READ).is_visible


def test_a_rule_that_denies_after_a_conditional_one_explains_itself() -> None:
    advice = "Read /data."
    policy = Policy([allow(condition=when("args.path == '/data'")), deny(message=advice)])
    decision = policy.evaluate(ANNA, READ)
    assert decision.resolve(arguments(path="/data")).explanation == ""
    refused = decision.resolve(arguments(path="/etc"))
    assert (refused.outcome, refused.explanation) == (DENY, advice)


def test_a_feature_that_some_arguments_allow_is_visible() -> None:
    policy = Policy([allow(condition=when("args.x == 1"), location="1"), deny(location="2")])
    decision = policy.evaluate(ANNA, READ)
    assert decision.is_visible
    assert decision.resolve(arguments(x=1)) == PolicyResult(ALLOW, "1")
    assert decision.resolve(arguments(x=2)) == PolicyResult(DENY, "2")


def test_a_condition_without_arguments_is_evaluated_once() -> None:
    policy = Policy([allow(condition=when("role == 'dev' && 'dev' in roles"), location="1")])
    assert policy.evaluate(ANNA, READ) == PolicyDecision(PolicyResult(ALLOW, "1"))
    assert not policy.evaluate(Subject(), READ).is_visible


def test_a_condition_that_fails_early_never_allows_either() -> None:
    broken = when("annotations.nothing")
    assert not Policy([allow(condition=broken)]).evaluate(ANNA, READ).is_visible
    denied = Policy([deny(condition=broken, location="1"), allow()]).evaluate(ANNA, READ)
    assert denied.final[:2] == (HIDDEN, "1")


@pytest.mark.parametrize("kind", [FeatureKind.RESOURCE, FeatureKind.TEMPLATE])
def test_conditions_on_resources_need_no_arguments(kind: FeatureKind) -> None:
    a_target = Target(kind, "x:1", "fs")
    assert (
        not Policy([allow(condition=when("args.path == '/tmp'"))])
        .evaluate(ANNA, a_target)
        .is_visible
    )
    assert (
        Policy([allow(condition=when("size(args) == 0"))]).evaluate(ANNA, a_target).final[0]
        is ALLOW
    )
    waiting = Policy([allow(condition=when("args.a == 1"))])
    assert waiting.evaluate(ANNA, Target(FeatureKind.PROMPT, "p", "fs")).conditional


def test_the_variables_of_a_policy_are_known() -> None:
    assert Policy([allow(roles=("dev",))]).variables == set()
    assert Policy([allow(subjects=("a",)), allow(clients=("b",))]).variables == {
        "subject",
        "client",
    }
    assert Policy([allow(backends=("a",), hints=(("readOnlyHint", True),))]).variables == {
        "backend",
        "annotations",
    }
    assert Policy([allow(condition=when("subject == args.user"))]).variables == {"subject", "args"}


# Roles

ROLES = {
    "admin": ADMIN,
    "dev": Role(
        frozenset({"tools.execute"}),
        ("fs__delete_*",),
        locations={
            RoleEntry("permissions", "tools.execute"): "t.toml:7",
            RoleEntry("denied_tools", "fs__delete_*"): "t.toml:8",
        },
    ),
    "viewer": Role(frozenset({"tools.read"})),
    "reader": Role(frozenset({"prompts.read", "resources.read"})),
    "none": Role(),
    "careful": Role(frozenset({"*"}), ("*__delete_*",)),
    "writer": Role(
        allowed=("fs__write", "fs__read"),
        locations={RoleEntry("allowed_tools", "fs__read"): "t.toml:9"},
    ),
    "gitter": Role(frozenset({"*"}), allowed=("git__*",)),
    "curious": Role(frozenset({"tools.read"}), allowed=("git__*",)),
    "idle": Role(frozenset({"tools.execute", "prompts.read"}), allowed=()),
}


@pytest.mark.holds("O0.9")
@pytest.mark.parametrize(
    ("roles", "tool", "prompt", "resource"),
    [
        ("admin", ALLOW, ALLOW, ALLOW),
        ("dev", ALLOW, HIDDEN, HIDDEN),
        ("viewer", DENY, HIDDEN, HIDDEN),
        ("reader", HIDDEN, ALLOW, ALLOW),
        ("none", HIDDEN, HIDDEN, HIDDEN),
        ("unknown", HIDDEN, HIDDEN, HIDDEN),
        ("", HIDDEN, HIDDEN, HIDDEN),
        ("unknown viewer reader", DENY, ALLOW, ALLOW),
        ("viewer dev", ALLOW, HIDDEN, HIDDEN),
        ("writer", ALLOW, HIDDEN, HIDDEN),
        ("gitter", HIDDEN, ALLOW, ALLOW),
        ("gitter dev", ALLOW, ALLOW, ALLOW),
        ("curious", DENY, HIDDEN, HIDDEN),
        ("idle", HIDDEN, ALLOW, HIDDEN),
        ("Admin", HIDDEN, HIDDEN, HIDDEN),
    ],
)
def test_roles_have_their_permissions(
    roles: str, tool: PolicyOutcome, prompt: PolicyOutcome, resource: PolicyOutcome
) -> None:
    policy, a_subject = Policy(roles=ROLES), Subject(tuple(roles.split()))
    assert outcome(policy, a_subject) is tool
    assert outcome(policy, a_subject, Target(FeatureKind.PROMPT, "fs__p", "fs")) is prompt
    for kind in (FeatureKind.RESOURCE, FeatureKind.TEMPLATE):
        assert outcome(policy, a_subject, Target(kind, "x:1", "fs")) is resource


@pytest.mark.holds("O0.9")
def test_denied_tools_override_every_permission_and_rule() -> None:
    policy = Policy([allow(location="1")], ROLES)
    deleting = READ._replace(name="fs__delete_all")
    assert outcome(policy, Subject(("careful",)), deleting) is HIDDEN
    assert outcome(policy, Subject(("admin", "careful")), deleting) is HIDDEN
    assert outcome(policy, Subject(("dev", "admin")), deleting) is HIDDEN
    assert outcome(policy, Subject(("admin",)), deleting) is ALLOW
    assert (
        outcome(policy, Subject(("careful",)), deleting._replace(kind=FeatureKind.PROMPT)) is ALLOW
    )


def test_the_permission_that_decided_is_named() -> None:
    policy = Policy(roles=ROLES)

    def rule(role: str, a_target: Target = READ) -> str:
        return policy.evaluate(Subject((role,)), a_target).final.rule

    assert rule("admin") == "role admin: * (t.toml:1)"
    assert rule("dev") == "role dev: tools.execute (t.toml:7)"
    assert rule("viewer") == "role viewer: tools.read"
    assert rule("writer") == "role writer: allowed_tools (t.toml:9)"
    assert rule("dev", READ._replace(name="fs__delete_x")) == "role dev: denied_tools (t.toml:8)"


def test_rules_go_before_the_permissions_of_roles() -> None:
    policy = Policy([deny("fs__*", roles=("admin",)), allow("db__*")], ROLES)
    assert outcome(policy, Subject(("admin",))) is HIDDEN
    assert outcome(policy, Subject(("admin",)), READ._replace(name="x__y")) is ALLOW
    assert outcome(policy, Subject(("none",)), READ._replace(name="db__get")) is ALLOW


def test_what_a_role_may_read_is_visible_whatever_the_conditions() -> None:
    policy = Policy([deny(condition=when("args.x == 1"), location="1")], ROLES)
    decision = policy.evaluate(Subject(("viewer",)), READ)
    assert decision.is_visible
    assert decision.resolve(arguments(x=1)) == PolicyResult(DENY, "1")
    assert decision.resolve(arguments(x=2)) == PolicyResult(DENY, "role viewer: tools.read")


# Properties

NAMES = st.sampled_from(["fs__read", "fs__delete_x", "db__get", "x:1"])
CONDITIONS = st.sampled_from(
    [
        None,
        "args.x == 1",
        "args.x != 1",
        "has(args.x)",
        "subject == 'anna'",
        "role == 'dev'",
        "true",
    ]
).map(lambda source: None if source is None else Condition(source))
RULES = st.builds(
    Rule,
    st.booleans(),
    st.sampled_from([("*",), ("fs__*",), ("db__get",), ("*__delete_*", "x:*")]),
    st.sampled_from(["r1", "r2"]),
    st.sampled_from([(), ("dev",), ("ops", "admin")]),
    st.sampled_from([(), ("anna",), ("b*",)]),
    st.sampled_from([(), ("claude*",)]),
    st.sampled_from([(), ("fs",), ("db",)]),
    st.sampled_from(
        [frozenset[FeatureKind](), frozenset({FeatureKind.TOOL}), frozenset({FeatureKind.RESOURCE})]
    ),
    st.sampled_from([(), (("readOnlyHint", True),)]),
    CONDITIONS,
)
SUBJECTS = st.builds(
    Subject,
    st.lists(st.sampled_from([*ROLES, "ops"]), max_size=3, unique=True).map(tuple),
    st.sampled_from(["anna", "bert"]),
    st.sampled_from(["claude", "cursor"]),
)
TARGETS = st.builds(
    Target,
    st.sampled_from(FeatureKind),
    NAMES,
    st.sampled_from(["fs", "db"]),
    st.sampled_from(["", "x:1"]),
    st.sampled_from([DEFAULT_HINTS, {**DEFAULT_HINTS, "readOnlyHint": True}]),
)
TABLES = st.sampled_from([{}, ROLES])
GIVEN = st.sampled_from([{}, {"x": 1}, {"x": 2}, {"x": "1"}]).map(lambda x: arguments(**x))


@given(st.lists(RULES), TABLES, SUBJECTS, TARGETS, GIVEN)
def test_equal_questions_have_equal_answers(
    rules: list[Rule],
    roles: dict[str, Role],
    a_subject: Subject,
    a_target: Target,
    args: StrictArguments,
) -> None:
    first = Policy(rules, roles).evaluate(a_subject, a_target)
    assert first == Policy(rules, roles).evaluate(a_subject, a_target)
    assert first.resolve(args) == first.resolve(args)


@given(st.lists(RULES, min_size=1), TABLES, st.tuples(SUBJECTS, TARGETS), GIVEN, st.data())
def test_a_rule_after_the_first_that_matches_changes_nothing(
    rules: list[Rule],
    roles: dict[str, Role],
    question: tuple[Subject, Target],
    args: StrictArguments,
    data: st.DataObject,
) -> None:
    (a_subject, a_target), another = question, data.draw(RULES)
    rules = [rule._replace(location=str(number)) for number, rule in enumerate(rules)]
    result = Policy(rules, roles).evaluate(a_subject, a_target).resolve(args)
    if not result.rule.isdigit():
        return  # no rule matched
    place = data.draw(st.integers(int(result.rule) + 1, len(rules)))
    longer = [*rules[:place], another._replace(location="another"), *rules[place:]]
    after = Policy(longer, roles).evaluate(a_subject, a_target).resolve(args)
    # A denied feature may become visible, because other arguments are allowed.
    assert (after.outcome is ALLOW, after.rule) == (result.outcome is ALLOW, result.rule)


@given(st.lists(RULES), TABLES, SUBJECTS, TARGETS, GIVEN)
def test_nothing_is_allowed_that_neither_a_rule_nor_a_role_allows(
    rules: list[Rule],
    roles: dict[str, Role],
    a_subject: Subject,
    a_target: Target,
    args: StrictArguments,
) -> None:
    denying = [rule._replace(allows=False) for rule in rules]
    idle = dict.fromkeys(roles, Role(frozenset({"tools.read"})))
    policy = Policy(denying, idle)
    if not policy.is_open:
        assert policy.evaluate(a_subject, a_target).resolve(args).outcome is not ALLOW


@given(st.lists(RULES), SUBJECTS, NAMES, GIVEN)
def test_denied_tools_override_everything(
    rules: list[Rule], a_subject: Subject, name: str, args: StrictArguments
) -> None:
    roles = ROLES | {"banned": Role(frozenset({"*"}), (name,))}
    banned = a_subject._replace(roles=(*a_subject.roles, "banned"))
    decision = Policy([*rules, allow()], roles).evaluate(
        banned, Target(FeatureKind.TOOL, name, "fs")
    )
    assert decision.resolve(args).outcome is HIDDEN
    assert not decision.is_visible


@given(st.lists(RULES), TABLES, SUBJECTS, TARGETS, GIVEN)
def test_hidden_features_are_hidden_for_all_arguments_and_visible_ones_never(
    rules: list[Rule],
    roles: dict[str, Role],
    a_subject: Subject,
    a_target: Target,
    args: StrictArguments,
) -> None:
    decision = Policy(rules, roles).evaluate(a_subject, a_target)
    result = decision.resolve(args)
    assert decision.is_visible is (result.outcome is not HIDDEN)
    if result.outcome is ALLOW:
        assert decision.is_visible


@given(st.lists(RULES), TABLES, SUBJECTS, TARGETS)
def test_a_visible_feature_could_be_allowed_or_may_be_read(
    rules: list[Rule], roles: dict[str, Role], a_subject: Subject, a_target: Target
) -> None:
    decision = Policy(rules, roles).evaluate(a_subject, a_target)
    could = decision.final.outcome is ALLOW or any(rule.allows for rule in decision.conditional)
    may_read = decision.final.rule.endswith("tools.read")
    assert decision.is_visible is (could or may_read)


@given(st.lists(RULES), TABLES, SUBJECTS, SUBJECTS, TARGETS)
def test_callers_that_agree_in_all_read_variables_get_equal_decisions(
    rules: list[Rule], roles: dict[str, Role], a_subject: Subject, other: Subject, a_target: Target
) -> None:
    policy = Policy(rules, roles)
    same = other._replace(roles=a_subject.roles)
    if "subject" in policy.variables:
        same = same._replace(subject=a_subject.subject)
    if "client" in policy.variables:
        same = same._replace(client=a_subject.client)
    one, another = policy.evaluate(a_subject, a_target), policy.evaluate(same, a_target)
    assert (one.final, one.conditional) == (another.final, another.conditional)


def test_a_client_whose_name_makes_a_condition_slow_sees_nothing() -> None:
    rule = Rule(True, ("*",), "policy[0]", condition=Condition("!subject.contains(client)"))
    policy = Policy((rule, Rule(True, ("*",))))
    target = Target(FeatureKind.TOOL, "fs__read", "fs")
    assert policy.evaluate(Subject(client="me"), target).is_visible
    assert not policy.evaluate(Subject(client="x" * 100_000), target).is_visible


def test_arguments_that_make_a_condition_slow_deny_the_call() -> None:
    slow = Rule(True, ("*",), "policy[0]", condition=Condition("args.a.contains(args.b)"))
    decision = Policy((slow, Rule(True, ("*",)))).evaluate(
        Subject(), Target(FeatureKind.TOOL, "fs__read", "fs")
    )
    arguments = StrictArguments({"a": "x" * 500_000, "b": "x"}, 3, 500_020)
    result = decision.resolve(arguments)
    assert (result.outcome, result.rule) == (PolicyOutcome.DENY, "policy[0]")
    assert "500016 bytes with 3 values could take too long" in result.note
    assert result.explanation == "its arguments are too large for a rule that reads them"
