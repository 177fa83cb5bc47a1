"""`trunkline policy explain | test`: what the policy says about a call, and which rule decides.

    TOOL, --as, --role, --client, --args ──> Policy ──> result, rule, file and line
    FILE of [[expect]] ──> Policy ──> table of differences, and exit code 1 if there are any

`test` starts no servers. `explain` starts them only if rules read what only servers know:
annotations, or the owner of a name without a unique prefix.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from msgspec import Struct

from trunkline.app.build import build_policy
from trunkline.cli.identities import find_key_owner
from trunkline.cli.locations import choose_config
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    fail,
    fail_config,
    print_json,
    print_lines,
    print_message,
    print_table,
)
from trunkline.cli.startup import is_tool_available, servers_for_name, start_gateway
from trunkline.config import Config, ConfigErrors
from trunkline.config.policy_tables import Expectation, read_expectations
from trunkline.gateway.enforcement import policy_target
from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.features import KIND_NAMES, FeatureKind, read_hints
from trunkline.routing.catalog import Catalog, CatalogEntry
from trunkline.routing.conditions import StrictArguments, read_strict_arguments
from trunkline.routing.policy import (
    Policy,
    PolicyOutcome,
    Subject,
    Target,
)

KINDS_BY_NAME = {name: kind for kind, name in KIND_NAMES.items()}


def server_for_name(config: Config, name: str) -> str | None:
    """Return the only server that could offer a tool or prompt of this name, if known."""
    able = servers_for_name(config, name)
    return able[0] if len(able) == 1 else None


def is_decidable_by_name(policy: Policy, kind: FeatureKind, owner: str | None) -> bool:
    """Return whether the rules can be evaluated without starting the server."""
    known = owner is not None and _is_prefixed(kind)
    return "annotations" not in policy.variables and (known or "backend" not in policy.variables)


class ExpectationResult(Struct, frozen=True):
    """One expectation, and what the policy says."""

    line: int
    subject: str
    roles: tuple[str, ...]
    tool: str
    expected: str
    got: str
    rule: str
    ok: bool


def run_policy_test(file: Path, option: Path | None, as_json: bool) -> None:
    """Print the result of every expectation; exit with 1 if one was not met."""
    config = choose_config(option)
    try:
        expectations = read_expectations(file)
    except ConfigErrors as error:
        fail_config(error)
    policy = build_policy(config)
    tried = [_test_expectation(policy, config, each, file) for each in expectations]
    if as_json:
        print_json(tried)
    else:
        print_table(
            ("line", "who", "tool", "expected", "got", "", "rule"), map(_expectation_row, tried)
        )
    bad = sum(not each.ok for each in tried)
    print_message(f"{len(tried) - bad} of {len(tried)} as expected")
    if bad:
        raise SystemExit(EXIT_FAILURE)


def _test_expectation(
    policy: Policy, config: Config, expected: Expectation, file: Path
) -> ExpectationResult:
    kind = KINDS_BY_NAME[expected.kind]
    caller = Subject(expected.roles, expected.subject, expected.client)
    server = expected.server or (
        server_for_name(config, expected.tool) if _is_prefixed(kind) else None
    )
    # Read as a server's definition would be, with the same defaults.
    hints = read_hints(to_raw({"annotations": expected.annotations}))
    decision = policy.evaluate(caller, Target(kind, expected.tool, server or "", hints=hints))
    try:
        result = decision.resolve(read_strict_arguments(to_raw(expected.args)))
    except (ValueError, TypeError) as error:
        fail(EXIT_USAGE, f"{file}:{expected.line}: expect.args: {error}")
    got = result.outcome.value
    right_rule = expected.rule is None or result.rule.startswith(expected.rule)
    return ExpectationResult(
        expected.line,
        expected.subject,
        expected.roles,
        expected.tool,
        f"{expected.expect}{'' if expected.rule is None else f' by {expected.rule}'}",
        got,
        result.rule,
        got == expected.expect and right_rule,
    )


def _is_prefixed(kind: FeatureKind) -> bool:
    # URIs have no prefix, so they do not show their server.
    return kind in (FeatureKind.TOOL, FeatureKind.PROMPT)


def _expectation_row(each: ExpectationResult) -> tuple[str, ...]:
    roles = f" ({', '.join(each.roles)})" if each.roles else ""
    mark = "ok" if each.ok else "WRONG"
    return (
        str(each.line),
        each.subject + roles,
        each.tool,
        each.expected,
        each.got,
        mark,
        each.rule,
    )


class Explanation(Struct, frozen=True, kw_only=True):
    """What the policy says about one call."""

    # `allow`, `deny`, `hidden`, or `depends`: rules read arguments, but none were given.
    outcome: str
    # The deciding rule; for `depends`, the one that decides if no condition holds.
    rule: str
    note: str
    # The message for a caller who sees the tool, if the call is denied.
    message: str
    # The result for a call that no condition applies to.
    otherwise: str
    visible: bool
    # The rules that read arguments.
    conditions: tuple[str, ...]
    kind: str
    tool: str
    server: str | None
    servers_started: bool
    roles: tuple[str, ...]
    # What may be wrong with the caller, such as an unknown role.
    notes: tuple[str, ...]


class HypotheticalCall(NamedTuple):
    """A call to explain."""

    name: str
    kind: FeatureKind
    caller: Subject
    arguments: StrictArguments | None


def run_explain(
    call: HypotheticalCall, option: Path | None, as_json: bool, timeout: float | None
) -> None:
    """Print what the policy says about a call, and why."""
    config = choose_config(option)
    call, notes = _with_key_roles(call, config)
    notes += config.policy.role_warnings(call.caller.roles)
    policy = build_policy(config)
    owner = server_for_name(config, call.name)
    started = not is_decidable_by_name(policy, call.kind, owner)
    # Servers are started only if a rule depends on what only they know.
    if started:
        target = asyncio.run(_look_up_target(config, call, timeout))
    else:
        target = Target(call.kind, call.name, owner or "")
    answer = explain_call(policy, call, target, started, notes)
    if as_json:
        print_json(answer)
    else:
        _print_explanation(answer, call)


def parse_hypothetical_call(
    name: str, kind: str, identity: tuple[str, Sequence[str], str], text: str | None
) -> HypotheticalCall:
    """Return the call that the arguments describe; exit with 2 if they are invalid."""
    subject, roles, client = identity
    arguments = None
    if text is not None:
        try:
            arguments = read_strict_arguments(Raw(text.encode()))
        except ValueError as error:
            fail(EXIT_USAGE, f"--args: expected an unambiguous JSON object: {error}")
    return HypotheticalCall(
        name, KINDS_BY_NAME[kind], Subject(tuple(roles), subject, client), arguments
    )


def _with_key_roles(
    call: HypotheticalCall, config: Config
) -> tuple[HypotheticalCall, tuple[str, ...]]:
    """Return the call with the roles of its caller's API key, unless roles were given, and notes.

    Exits with 2 if the keys of the subject have different roles.
    """
    if call.caller.roles:
        return call, ()
    owner = find_key_owner(config, call.caller.subject)
    if owner.subject is None:
        return call, owner.notes
    caller = Subject(owner.roles, owner.subject, call.caller.client)
    return call._replace(caller=caller), ()


def explain_call(
    policy: Policy,
    call: HypotheticalCall,
    target: Target,
    started: bool,
    notes: tuple[str, ...] = (),
) -> Explanation:
    """Return what the policy says about a call."""
    decision = policy.evaluate(call.caller, target)
    depends = bool(decision.conditional) and call.arguments is None
    result = decision.final if call.arguments is None else decision.resolve(call.arguments)
    return Explanation(
        outcome="depends" if depends else result.outcome.value,
        rule=result.rule,
        note=result.note,
        message=result.explanation if result.outcome is PolicyOutcome.DENY else "",
        otherwise=decision.final.outcome.value,
        visible=decision.is_visible,
        conditions=tuple(
            f"{rule.location} {'allows' if rule.allows else 'denies'} if {rule.condition.source}"
            for rule in decision.conditional
            if rule.condition is not None
        ),
        kind=KIND_NAMES[call.kind],
        tool=target.name,
        server=target.backend or None,
        servers_started=started,
        roles=call.caller.roles,
        notes=notes,
    )


async def _look_up_target(config: Config, call: HypotheticalCall, timeout: float | None) -> Target:
    """Start the servers, and return their entry as rules see it; exit with 1 if there is none."""
    async with start_gateway(
        # Do not wait for servers that cannot offer this name.
        config,
        timeout,
        lambda registry: is_tool_available(registry, call.name),
    ) as started:
        entry = _find_entry(started.gateway.registry.catalog, call)
    return policy_target(entry) if entry is not None else _fail_unknown(call)


def _find_entry(catalog: Catalog, call: HypotheticalCall) -> CatalogEntry | None:
    if call.kind is FeatureKind.RESOURCE:
        return catalog.find_resource(call.name)
    return catalog.find(call.kind, call.name)


def _fail_unknown(call: HypotheticalCall) -> NoReturn:
    kind = KIND_NAMES[call.kind]
    fail(EXIT_FAILURE, f"unknown {kind}: {call.name}; no server that started offers it")


_SENTENCES = {
    "allow": "allowed: {who} may call {tool}",
    "deny": "denied: {who} can see {tool}, but must not make this call",
    "hidden": "hidden: {who} cannot see {tool}",
    "depends": "depends on the arguments: {who} can see {tool}, and make some calls",
}


def _print_explanation(answer: Explanation, call: HypotheticalCall) -> None:
    roles = f" ({', '.join(call.caller.roles)})" if call.caller.roles else ""
    words = _SENTENCES[answer.outcome]
    print_lines(words.format(who=f"{call.caller.subject}{roles}", tool=answer.tool))
    if answer.outcome == "depends":
        for condition in answer.conditions:
            print_lines(f"rule: {condition}")
        print_lines(f"else: {answer.otherwise}, {answer.rule}")
    else:
        print_lines(f"rule: {answer.rule}{answer.note and f'; {answer.note}'}")
        if answer.message:
            print_lines(f"message: {answer.message}")
    if answer.servers_started:
        print_lines(f"servers: started; {answer.server} offers it")
    else:
        print_lines("servers: not started; whether the tool exists was not checked")
    print_message(*(f"note: {note}" for note in answer.notes))
