"""Policy: the order of rules, roles behind them, and nobody otherwise."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.mcp.annotations import HINTS
from trunkline.mcp.offer import Kind
from trunkline.routing.conditions import Condition
from trunkline.routing.legible import NO_ARGUMENTS, Arguments
from trunkline.routing.policy import (
    MAX_NAME,
    NO_RULE,
    OPEN,
    TOO_LONG,
    Outcome,
    Policy,
    Role,
    Rule,
    Standing,
    Verdict,
    What,
    Who,
)

ALLOW, DENY, HIDDEN = Outcome.ALLOW, Outcome.DENY, Outcome.HIDDEN
ANNA = Who(("dev",), "anna", "claude-code")
READ = What(Kind.TOOL, "fs__read", "fs")
ADMIN = Role(frozenset({"*"}), place="t.toml:1")


def allow(*patterns: str, **more: Any) -> Rule:
    return Rule(True, patterns or ("*",), **more)


def deny(*patterns: str, **more: Any) -> Rule:
    return Rule(False, patterns or ("*",), **more)


def when(source: str) -> Condition:
    return Condition(source)


def arguments(**members: Any) -> Arguments:
    return Arguments(members, len(members) + 1)


def outcome(policy: Policy, who: Who = ANNA, what: What = READ, **args: Any) -> Outcome:
    return policy.stand(who, what).judge(arguments(**args)).outcome


# Rules


def test_without_rules_and_roles_everybody_may_call_everything() -> None:
    assert Policy().is_open
    assert Policy().stand(ANNA, READ) == Standing(Verdict(ALLOW, OPEN))


@pytest.mark.holds("M9")
def test_what_no_rule_allows_is_hidden_once_there_is_any() -> None:
    for policy in (Policy([allow("other")]), Policy([deny("other")]), Policy(roles={"x": ADMIN})):
        standing = policy.stand(ANNA, READ)
        assert standing == Standing(Verdict(HIDDEN, NO_RULE))
        assert not standing.visible
        assert not policy.is_open


def test_the_first_rule_that_matches_decides_and_is_named() -> None:
    rules = [deny("fs__write_*", place="1"), allow("fs__*", place="2"), deny(place="3")]
    policy = Policy(rules)
    assert policy.stand(ANNA, READ).final == Verdict(ALLOW, "2")
    assert policy.stand(ANNA, READ._replace(name="fs__write_x")).final == Verdict(HIDDEN, "1")
    assert policy.stand(ANNA, READ._replace(name="db__get")).final == Verdict(HIDDEN, "3")


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
        (allow(kinds=frozenset({Kind.TOOL})), True),
        (allow(kinds=frozenset({Kind.PROMPT, Kind.RESOURCE})), False),
        (allow(hints=(("readOnlyHint", False), ("destructiveHint", True))), True),
        (allow(hints=(("readOnlyHint", True),)), False),
        (allow(condition=when("tool == 'fs__read' && subject == 'anna'")), True),
        (allow(condition=when("client == 'other'")), False),
        (allow(roles=("dev",), subjects=("bert",)), False),
    ],
)
def test_a_rule_is_about_what_fits_all_that_it_says(rule: Rule, matches: bool) -> None:
    assert Policy([rule]).stand(ANNA, READ).visible is matches
    assert (outcome(Policy([rule])) is ALLOW) is matches


def test_a_rule_about_annotations_is_about_tools_alone() -> None:
    policy = Policy([deny(hints=(("destructiveHint", True),)), allow()])
    assert outcome(policy) is HIDDEN
    assert outcome(policy, what=READ._replace(hints={**HINTS, "destructiveHint": False})) is ALLOW
    assert outcome(policy, what=READ._replace(kind=Kind.PROMPT)) is ALLOW


def test_a_resource_is_known_by_both_its_uris() -> None:
    marked = What(Kind.RESOURCE, "trunkline:b:file:///secret/x", "b", "file:///secret/x")
    assert outcome(Policy([deny("file:///secret/*"), allow()]), what=marked) is HIDDEN
    assert outcome(Policy([allow("file:///secret/*")]), what=marked) is ALLOW
    assert outcome(Policy([allow("file:///public/*")]), what=marked) is HIDDEN


def test_a_name_that_is_too_long_to_be_looked_at_is_hidden() -> None:
    what = What(Kind.RESOURCE, "x:" + "a" * MAX_NAME, "fs")
    assert Policy([allow()]).stand(ANNA, what) == Standing(Verdict(HIDDEN, TOO_LONG))


# Conditions


def test_a_rule_that_reads_arguments_waits_for_them() -> None:
    condition = when("args.path.startsWith('/etc')")
    policy = Policy([deny(condition=condition, place="1"), allow(place="2")])
    standing = policy.stand(ANNA, READ)
    assert standing.visible
    assert standing.judge(arguments(path="/etc/x")) == Verdict(DENY, "1")
    assert standing.judge(arguments(path="/tmp/x")) == Verdict(ALLOW, "2")


@pytest.mark.holds("M9")
def test_a_condition_without_an_answer_never_allows() -> None:
    condition = when("args.path.startsWith('/tmp')")
    allowing = Policy([allow(condition=condition, place="1")]).stand(ANNA, READ)
    denying = Policy([deny(condition=condition, place="1"), allow()]).stand(ANNA, READ)
    for args in (NO_ARGUMENTS, arguments(path=3), arguments(Path="/tmp")):
        assert allowing.judge(args) == Verdict(DENY, NO_RULE)
        verdict = denying.judge(args)
        assert verdict[:2] == (DENY, "1")
        assert verdict.note.startswith("its condition failed: ")
    assert allowing.judge(arguments(path="/tmp/x")).outcome is ALLOW


def test_what_only_arguments_deny_and_nobody_allows_is_hidden() -> None:
    denying = deny(condition=when("args.x == 1"), place="1")
    assert Policy([denying]).stand(ANNA, READ) == Standing(Verdict(HIDDEN, NO_RULE))
    assert not Policy([denying, deny()]).stand(ANNA, READ).visible


def test_what_some_arguments_allow_is_visible_and_denied_for_others() -> None:
    policy = Policy([allow(condition=when("args.x == 1"), place="1"), deny(place="2")])
    standing = policy.stand(ANNA, READ)
    assert standing.visible
    assert standing.judge(arguments(x=1)) == Verdict(ALLOW, "1")
    assert standing.judge(arguments(x=2)) == Verdict(DENY, "2")


def test_a_condition_that_reads_no_arguments_is_asked_once_and_for_all() -> None:
    policy = Policy([allow(condition=when("role == 'dev' && 'dev' in roles"), place="1")])
    assert policy.stand(ANNA, READ) == Standing(Verdict(ALLOW, "1"))
    assert not policy.stand(Who(), READ).visible


def test_one_that_fails_before_any_arguments_never_allows_either() -> None:
    broken = when("annotations.nothing")
    assert not Policy([allow(condition=broken)]).stand(ANNA, READ).visible
    denied = Policy([deny(condition=broken, place="1"), allow()]).stand(ANNA, READ)
    assert denied.final[:2] == (HIDDEN, "1")


@pytest.mark.parametrize("kind", [Kind.RESOURCE, Kind.TEMPLATE])
def test_resources_have_no_arguments_to_wait_for(kind: Kind) -> None:
    what = What(kind, "x:1", "fs")
    assert not Policy([allow(condition=when("args.path == '/tmp'"))]).stand(ANNA, what).visible
    assert Policy([allow(condition=when("size(args) == 0"))]).stand(ANNA, what).final[0] is ALLOW
    waiting = Policy([allow(condition=when("args.a == 1"))])
    assert waiting.stand(ANNA, What(Kind.PROMPT, "p", "fs")).conditional


def test_what_of_callers_a_policy_looks_at_is_known() -> None:
    assert Policy([allow(roles=("dev",))]).reads == set()
    assert Policy([allow(subjects=("a",)), allow(clients=("b",))]).reads == {"subject", "client"}
    assert Policy([allow(backends=("a",), hints=(("readOnlyHint", True),))]).reads == {
        "backend",
        "annotations",
    }
    assert Policy([allow(condition=when("subject == args.user"))]).reads == {"subject", "args"}


# Roles

ROLES = {
    "admin": ADMIN,
    "dev": Role(frozenset({"tools.execute"}), ("fs__delete_*",), "t.toml:7"),
    "viewer": Role(frozenset({"tools.read"})),
    "reader": Role(frozenset({"prompts.read", "resources.read"})),
    "nobody": Role(),
    "careful": Role(frozenset({"*"}), ("*__delete_*",)),
}


@pytest.mark.holds("O0.9")
@pytest.mark.parametrize(
    ("roles", "tool", "prompt", "resource"),
    [
        ("admin", ALLOW, ALLOW, ALLOW),
        ("dev", ALLOW, HIDDEN, HIDDEN),
        ("viewer", DENY, HIDDEN, HIDDEN),
        ("reader", HIDDEN, ALLOW, ALLOW),
        ("nobody", HIDDEN, HIDDEN, HIDDEN),
        ("unknown", HIDDEN, HIDDEN, HIDDEN),
        ("", HIDDEN, HIDDEN, HIDDEN),
        ("unknown viewer reader", DENY, ALLOW, ALLOW),
        ("viewer dev", ALLOW, HIDDEN, HIDDEN),
        ("Admin", HIDDEN, HIDDEN, HIDDEN),
    ],
)
def test_roles_may_do_what_their_permissions_say(
    roles: str, tool: Outcome, prompt: Outcome, resource: Outcome
) -> None:
    policy, who = Policy(roles=ROLES), Who(tuple(roles.split()))
    assert outcome(policy, who) is tool
    assert outcome(policy, who, What(Kind.PROMPT, "fs__p", "fs")) is prompt
    for kind in (Kind.RESOURCE, Kind.TEMPLATE):
        assert outcome(policy, who, What(kind, "x:1", "fs")) is resource


@pytest.mark.holds("O0.9")
def test_denied_tools_beat_every_permission_and_every_rule() -> None:
    policy = Policy([allow(place="1")], ROLES)
    deleting = READ._replace(name="fs__delete_all")
    assert outcome(policy, Who(("careful",)), deleting) is HIDDEN
    assert outcome(policy, Who(("admin", "careful")), deleting) is HIDDEN
    assert outcome(policy, Who(("dev", "admin")), deleting) is HIDDEN
    assert outcome(policy, Who(("admin",)), deleting) is ALLOW
    assert outcome(policy, Who(("careful",)), deleting._replace(kind=Kind.PROMPT)) is ALLOW


def test_the_permission_that_decided_is_named() -> None:
    policy = Policy(roles=ROLES)

    def rule(role: str, what: What = READ) -> str:
        return policy.stand(Who((role,)), what).final.rule

    assert rule("admin") == "role admin: * (t.toml:1)"
    assert rule("dev") == "role dev: tools.execute (t.toml:7)"
    assert rule("viewer") == "role viewer: tools.read"
    assert rule("dev", READ._replace(name="fs__delete_x")) == "role dev: denied_tools (t.toml:7)"


def test_rules_go_before_the_permissions_of_roles() -> None:
    policy = Policy([deny("fs__*", roles=("admin",)), allow("db__*")], ROLES)
    assert outcome(policy, Who(("admin",))) is HIDDEN
    assert outcome(policy, Who(("admin",)), READ._replace(name="x__y")) is ALLOW
    assert outcome(policy, Who(("nobody",)), READ._replace(name="db__get")) is ALLOW


def test_what_a_role_may_read_is_visible_whatever_conditions_say() -> None:
    policy = Policy([deny(condition=when("args.x == 1"), place="1")], ROLES)
    standing = policy.stand(Who(("viewer",)), READ)
    assert standing.visible
    assert standing.judge(arguments(x=1)) == Verdict(DENY, "1")
    assert standing.judge(arguments(x=2)) == Verdict(DENY, "role viewer: tools.read")


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
    st.sampled_from([frozenset[Kind](), frozenset({Kind.TOOL}), frozenset({Kind.RESOURCE})]),
    st.sampled_from([(), (("readOnlyHint", True),)]),
    CONDITIONS,
)
WHO = st.builds(
    Who,
    st.lists(st.sampled_from([*ROLES, "ops"]), max_size=3, unique=True).map(tuple),
    st.sampled_from(["anna", "bert"]),
    st.sampled_from(["claude", "cursor"]),
)
WHAT = st.builds(
    What,
    st.sampled_from(Kind),
    NAMES,
    st.sampled_from(["fs", "db"]),
    st.sampled_from(["", "x:1"]),
    st.sampled_from([HINTS, {**HINTS, "readOnlyHint": True}]),
)
TABLES = st.sampled_from([{}, ROLES])
GIVEN = st.sampled_from([{}, {"x": 1}, {"x": 2}, {"x": "1"}]).map(lambda x: arguments(**x))


@given(st.lists(RULES), TABLES, WHO, WHAT, GIVEN)
def test_the_same_question_has_the_same_answer(
    rules: list[Rule], roles: dict[str, Role], who: Who, what: What, args: Arguments
) -> None:
    first = Policy(rules, roles).stand(who, what)
    assert first == Policy(rules, roles).stand(who, what)
    assert first.judge(args) == first.judge(args)


@given(st.lists(RULES, min_size=1), TABLES, st.tuples(WHO, WHAT), GIVEN, st.data())
def test_a_rule_after_the_first_that_matches_changes_nothing(
    rules: list[Rule],
    roles: dict[str, Role],
    asked: tuple[Who, What],
    args: Arguments,
    data: st.DataObject,
) -> None:
    (who, what), another = asked, data.draw(RULES)
    rules = [rule._replace(place=str(number)) for number, rule in enumerate(rules)]
    verdict = Policy(rules, roles).stand(who, what).judge(args)
    if not verdict.rule.isdigit():
        return  # no rule matched, so that there is no place after it
    place = data.draw(st.integers(int(verdict.rule) + 1, len(rules)))
    longer = [*rules[:place], another._replace(place="another"), *rules[place:]]
    after = Policy(longer, roles).stand(who, what).judge(args)
    # What is denied may become visible, since others could be allowed; it is denied all the same.
    assert (after.outcome is ALLOW, after.rule) == (verdict.outcome is ALLOW, verdict.rule)


@given(st.lists(RULES), TABLES, WHO, WHAT, GIVEN)
def test_nothing_is_allowed_that_neither_a_rule_nor_a_role_allows(
    rules: list[Rule], roles: dict[str, Role], who: Who, what: What, args: Arguments
) -> None:
    denying = [rule._replace(allows=False) for rule in rules]
    idle = dict.fromkeys(roles, Role(frozenset({"tools.read"})))
    policy = Policy(denying, idle)
    if not policy.is_open:
        assert policy.stand(who, what).judge(args).outcome is not ALLOW


@given(st.lists(RULES), WHO, NAMES, GIVEN)
def test_denied_tools_beat_all(rules: list[Rule], who: Who, name: str, args: Arguments) -> None:
    roles = ROLES | {"banned": Role(frozenset({"*"}), (name,))}
    banned = who._replace(roles=(*who.roles, "banned"))
    standing = Policy([*rules, allow()], roles).stand(banned, What(Kind.TOOL, name, "fs"))
    assert standing.judge(args).outcome is HIDDEN
    assert not standing.visible


@given(st.lists(RULES), TABLES, WHO, WHAT, GIVEN)
def test_what_is_hidden_is_hidden_whatever_the_arguments_and_the_rest_never(
    rules: list[Rule], roles: dict[str, Role], who: Who, what: What, args: Arguments
) -> None:
    standing = Policy(rules, roles).stand(who, what)
    verdict = standing.judge(args)
    assert standing.visible is (verdict.outcome is not HIDDEN)
    if verdict.outcome is ALLOW:
        assert standing.visible


@given(st.lists(RULES), TABLES, WHO, WHAT)
def test_what_is_visible_could_be_allowed_or_may_be_read(
    rules: list[Rule], roles: dict[str, Role], who: Who, what: What
) -> None:
    standing = Policy(rules, roles).stand(who, what)
    could = standing.final.outcome is ALLOW or any(rule.allows for rule in standing.conditional)
    may_read = standing.final.rule.endswith("tools.read")
    assert standing.visible is (could or may_read)


@given(st.lists(RULES), TABLES, WHO, WHO, WHAT)
def test_those_are_judged_alike_whom_nothing_that_is_read_tells_apart(
    rules: list[Rule], roles: dict[str, Role], who: Who, other: Who, what: What
) -> None:
    policy = Policy(rules, roles)
    same = other._replace(roles=who.roles)
    if "subject" in policy.reads:
        same = same._replace(subject=who.subject)
    if "client" in policy.reads:
        same = same._replace(client=who.client)
    one, another = policy.stand(who, what), policy.stand(same, what)
    assert (one.final, one.conditional) == (another.final, another.conditional)
