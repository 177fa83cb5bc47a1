"""Building the enforcement chain from the settings, and rebuilding it on a reload."""

import msgspec

from tests.calls import ended_call
from trunkline.app.application import App
from trunkline.app.build import build_policy_enforcer, build_stores, prepare_enforcement
from trunkline.config import Config, GatewaySettings, LimitsSettings, PolicySettings, RoleSettings
from trunkline.gateway.enforcement import EnforcementChain
from trunkline.gateway.stores import resolve
from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.features import FeatureKind
from trunkline.routing.catalog import CatalogEntry

ROLES = PolicySettings(roles=(RoleSettings(name="dev", permissions=("*",)),))
UNCHECKED = Config(gateway=GatewaySettings(check_arguments="off"))


def enforcement(app: App) -> EnforcementChain:
    chain = app.gateway.pipeline.enforcer
    assert isinstance(chain, EnforcementChain)
    return chain


def test_without_settings_only_the_kill_switches_are_enforced() -> None:
    app = App(UNCHECKED)
    chain = enforcement(app)
    assert (chain.policy_enforcer, chain.rate_limiter, chain.argument_checker) == (None, None, None)
    assert chain.kill_switches is app.switches
    assert app.gateway.registry.visibility.is_unrestricted
    assert build_policy_enforcer(UNCHECKED) is None


def test_with_a_role_the_policy_applies_to_lists_and_calls() -> None:
    app = App(Config(policy=ROLES))
    assert enforcement(app).policy_enforcer is not None
    assert enforcement(app).argument_checker is not None
    assert not app.gateway.registry.visibility.is_unrestricted
    assert not app.gateway.registry.visibility.is_uniform


READ = CatalogEntry(FeatureKind.TOOL, "fs__read", "fs", "read", Raw(b"{}"))
CALL = ended_call().context


async def is_refused(app: App) -> bool:
    """Make a call, and return whether it exceeds a limit."""
    limiter = enforcement(app).rate_limiter
    assert limiter is not None
    applied = limiter.limits_for(CALL.caller, READ)
    assert applied is not None
    try:
        await resolve(limiter.acquire(CALL, READ, applied))
    except RpcError:
        return True
    return False


async def test_new_limits_keep_the_used_quota() -> None:
    stores = build_stores(Config(), None)
    app = App(Config(limits=LimitsSettings(default_rpm=1)), stores=stores)
    assert not await is_refused(app)
    for limits in (LimitsSettings(default_rpm=1), None, LimitsSettings(default_rpm=1)):
        config = msgspec.structs.replace(app.config, limits=limits)
        apply = prepare_enforcement(app.gateway, config, app.switches, stores.limits)
        before = enforcement(app)
        assert before.rate_limiter is None or await is_refused(app)
        apply()
        assert enforcement(app) is not before
    assert await is_refused(app)


def test_limits_can_be_added_and_removed_by_a_reload() -> None:
    stores = build_stores(Config(), None)
    app = App(Config(), stores=stores)
    assert enforcement(app).rate_limiter is None
    for limits in (LimitsSettings(), None):
        config = Config(limits=limits)
        prepare_enforcement(app.gateway, config, app.switches, stores.limits)()
        assert (enforcement(app).rate_limiter is None) is (limits is None)
