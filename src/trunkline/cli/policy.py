"""`trunkline policy test`: what the policy says, against a table of what is expected of it.

FILE of [[expect]] ──> Policy, without any server ──> a table, and 1 where they differ
"""

from pathlib import Path

from msgspec import Struct

from trunkline.assembly.policy import policy_of
from trunkline.cli.config_choice import choose_config
from trunkline.cli.judging import KINDS, owner_of
from trunkline.cli.screen import FAILED, WRONG, fail, print_json, print_table, say
from trunkline.config import Config, ConfigErrors
from trunkline.config.expectations import Expectation, read_expectations
from trunkline.jsonrpc import to_raw
from trunkline.mcp.annotations import read_hints
from trunkline.mcp.offer import Kind
from trunkline.routing.legible import read_arguments
from trunkline.routing.policy import Policy, What, Who


class Tried(Struct, frozen=True):
    """One expectation, and what came of it."""

    line: int
    subject: str
    roles: tuple[str, ...]
    tool: str
    expected: str
    got: str
    rule: str
    ok: bool


def try_out(file: Path, option: Path | None, as_json: bool) -> None:
    """Print what came of every expectation, and end with 1 if one was not met."""
    config = choose_config(option)
    try:
        expectations = read_expectations(file)
    except ConfigErrors as wrong:
        fail(WRONG, *map(str, wrong.errors))
    policy = policy_of(config)
    tried = [_try(policy, config, each, file) for each in expectations]
    if as_json:
        print_json(tried)
    else:
        print_table(("line", "who", "tool", "expected", "got", "", "rule"), map(_row, tried))
    bad = sum(not each.ok for each in tried)
    say(f"{len(tried) - bad} of {len(tried)} as expected")
    if bad:
        raise SystemExit(FAILED)


def _try(policy: Policy, config: Config, expected: Expectation, file: Path) -> Tried:
    kind = KINDS[expected.kind]
    who = Who(expected.roles, expected.subject, expected.client)
    server = expected.server or (owner_of(config, expected.tool) if _has_prefix(kind) else None)
    hints = read_hints(to_raw({"annotations": expected.annotations}))
    standing = policy.stand(who, What(kind, expected.tool, server or "", hints=hints))
    try:
        verdict = standing.judge(read_arguments(to_raw(expected.args)))
    except (ValueError, TypeError) as wrong:
        fail(WRONG, f"{file}:{expected.line}: expect.args: {wrong}")
    got = verdict.outcome.value
    right_rule = expected.rule is None or verdict.rule.startswith(expected.rule)
    return Tried(
        expected.line,
        expected.subject,
        expected.roles,
        expected.tool,
        f"{expected.expect}{'' if expected.rule is None else f' by {expected.rule}'}",
        got,
        verdict.rule,
        got == expected.expect and right_rule,
    )


def _has_prefix(kind: Kind) -> bool:
    return kind in (Kind.TOOL, Kind.PROMPT)


def _row(each: Tried) -> tuple[str, ...]:
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
