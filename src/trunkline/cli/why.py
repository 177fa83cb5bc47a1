"""`trunkline why`: what the policy says of a call, and which rule in which line says it.

    TOOL, --as, --role, --client, --args ──> Policy ──> verdict, rule, file and line

Servers are started only if rules read what only they know: annotations, or who offers a name.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from msgspec import Struct

from trunkline.assembly.policy import policy_of
from trunkline.cli.config_choice import choose_config
from trunkline.cli.judging import KINDS, name_suffices, owner_of
from trunkline.cli.screen import FAILED, WRONG, fail, print_json, print_lines
from trunkline.cli.startup import is_found, started
from trunkline.config import Config
from trunkline.gateway.authority import what_is
from trunkline.jsonrpc import Raw
from trunkline.mcp.offer import Kind
from trunkline.routing.catalog import Catalog, Entry
from trunkline.routing.legible import Arguments, read_arguments
from trunkline.routing.policy import KIND_NAMES, Policy, Standing, Verdict, What, Who


class Answer(Struct, frozen=True, kw_only=True):
    """What is to be said of one call."""

    verdict: str
    """`allow`, `deny`, `hidden`, or `depends` where no arguments were given and rules read them."""
    rule: str
    """The rule that says so; for `depends`, the one that decides where no condition does."""
    note: str
    otherwise: str
    """What becomes of a call that no condition is about."""
    visible: bool
    conditions: tuple[str, ...]
    """The rules that wait for arguments."""
    kind: str
    tool: str
    server: str | None
    servers_started: bool


class Asked(NamedTuple):
    """A call that somebody asks about."""

    name: str
    kind: Kind
    who: Who
    arguments: Arguments | None


def why(asked: Asked, option: Path | None, as_json: bool, timeout: float | None) -> None:
    """Print what the policy says of a call, and why."""
    config = choose_config(option)
    policy = policy_of(config)
    owner = owner_of(config, asked.name)
    started = not name_suffices(policy, asked.kind, owner)
    if started:
        what = asyncio.run(_look_up(config, asked, timeout))
    else:
        what = What(asked.kind, asked.name, owner or "")
    answer = answer_for(policy, asked, what, started)
    if as_json:
        print_json(answer)
    else:
        _print(answer, asked)


def read_asked(
    name: str, kind: str, who: tuple[str, Sequence[str], str], text: str | None
) -> Asked:
    """Return what is asked about, as the command line has it; else end with 2."""
    subject, roles, client = who
    arguments = None
    if text is not None:
        try:
            arguments = read_arguments(Raw(text.encode()))
        except ValueError as wrong:
            fail(WRONG, f"--args: expected a JSON object that has one meaning: {wrong}")
    return Asked(name, KINDS[kind], Who(tuple(roles), subject, client), arguments)


def answer_for(policy: Policy, asked: Asked, what: What, started: bool) -> Answer:
    """Return what is to be said of a call."""
    standing = policy.stand(asked.who, what)
    depends = bool(standing.conditional) and asked.arguments is None
    verdict = _verdict(standing, asked.arguments)
    return Answer(
        verdict="depends" if depends else verdict.outcome.value,
        rule=verdict.rule,
        note=verdict.note,
        otherwise=standing.final.outcome.value,
        visible=standing.visible,
        conditions=tuple(
            f"{rule.place} {'allows' if rule.allows else 'denies'} it when {rule.condition.source}"
            for rule in standing.conditional
            if rule.condition is not None
        ),
        kind=KIND_NAMES[asked.kind],
        tool=what.name,
        server=what.backend or None,
        servers_started=started,
    )


def _verdict(standing: Standing, arguments: Arguments | None) -> Verdict:
    return standing.final if arguments is None else standing.judge(arguments)


async def _look_up(config: Config, asked: Asked, timeout: float | None) -> What:
    """Start the servers, and return what they say of an offer; else end with 1."""
    async with started(config, timeout, lambda registry: is_found(registry, asked.name)) as there:
        entry = _find(there.gateway.registry.catalog, asked)
    return what_is(entry) if entry is not None else _unknown(asked)


def _find(catalog: Catalog, asked: Asked) -> Entry | None:
    if asked.kind is Kind.RESOURCE:
        return catalog.find_reader(asked.name)
    return catalog.find(asked.kind, asked.name)


def _unknown(asked: Asked) -> NoReturn:
    kind = KIND_NAMES[asked.kind]
    fail(FAILED, f"unknown {kind}: {asked.name}; no server that could be started offers it")


_WORDS = {
    "allow": "allowed: {who} may call {tool}",
    "deny": "denied: {who} may know of {tool}, and not call it so",
    "hidden": "hidden: to {who} there is no {tool}",
    "depends": "it depends on the arguments: {who} may know of {tool}, and call it with some",
}


def _print(answer: Answer, asked: Asked) -> None:
    roles = f" ({', '.join(asked.who.roles)})" if asked.who.roles else ""
    words = _WORDS[answer.verdict]
    print_lines(words.format(who=f"{asked.who.subject}{roles}", tool=answer.tool))
    if answer.verdict == "depends":
        for condition in answer.conditions:
            print_lines(f"rule: {condition}")
        print_lines(f"else: {answer.otherwise}, {answer.rule}")
    else:
        print_lines(f"rule: {answer.rule}{answer.note and f'; {answer.note}'}")
    if answer.servers_started:
        print_lines(f"servers: started; {answer.server} offers it")
    else:
        print_lines("servers: not started; nobody was asked whether there is such a thing")
