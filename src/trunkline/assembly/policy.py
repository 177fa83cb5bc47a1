"""Who may do what, as the settings have it."""

from collections.abc import Mapping

from trunkline.config import Config, RoleSettings, RuleSettings
from trunkline.mcp.offer import Kind
from trunkline.routing.conditions import Condition
from trunkline.routing.policy import KIND_NAMES, Policy, Role, Rule

_KINDS: Mapping[str, Kind] = {name: kind for kind, name in KIND_NAMES.items()}


def policy_of(config: Config) -> Policy:
    """Return what the settings say about who may do what."""
    settings = config.policy
    file = config.source.name if config.source else "configuration"
    rules = [_rule(rule, place, file) for place, rule in enumerate(settings.rules)]
    return Policy(rules, {role.name: _role(role, file) for role in settings.roles})


def _role(role: RoleSettings, file: str) -> Role:
    return Role(frozenset(role.permissions), role.denied_tools, f"{file}:{role.line}")


def _rule(rule: RuleSettings, place: int, file: str) -> Rule:
    return Rule(
        allows=rule.allow is not None,
        patterns=rule.patterns,
        place=f"policy[{place}] ({file}:{rule.line})",
        roles=rule.roles or (),
        subjects=rule.subjects or (),
        clients=rule.clients or (),
        backends=rule.servers or (),
        kinds=frozenset(_KINDS[name] for name in rule.kinds or ()),
        hints=rule.hints,
        condition=None if rule.when is None else Condition(rule.when),
    )
