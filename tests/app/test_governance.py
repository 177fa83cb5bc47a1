"""Building the enforcement chain from the settings, and rebuilding it on a reload."""

import msgspec

from trunkline.app.application import App
from trunkline.app.build import build_policy_enforcer, prepare_enforcement
from trunkline.config import Config, GatewaySettings, LimitsSettings, PolicySettings, RoleSettings
from trunkline.gateway.enforcement import EnforcementChain
from trunkline.routing.limits import Quota

ROLES = PolicySettings(roles=(RoleSettings(name="dev", permissions=("*",), line=1),))
UNCHECKED = Config(gateway=GatewaySettings(check_arguments=False))


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


def quota(chain: EnforcementChain) -> Quota:
    assert chain.rate_limiter is not None
    return chain.rate_limiter.quota


def test_new_limits_keep_the_used_quota() -> None:
    app = App(Config(limits=LimitsSettings()))
    original = quota(enforcement(app))
    for limits in (LimitsSettings(default_rpm=1), None, LimitsSettings()):
        config = msgspec.structs.replace(app.config, limits=limits)
        apply = prepare_enforcement(app.gateway, config, app.switches)
        before = enforcement(app)
        assert quota(before) is original
        apply()
        assert enforcement(app) is not before
        assert quota(enforcement(app)) is original


def test_limits_can_be_added_by_a_reload() -> None:
    app = App(Config())
    assert enforcement(app).rate_limiter is None
    prepare_enforcement(app.gateway, Config(limits=LimitsSettings()), app.switches)()
    assert enforcement(app).rate_limiter is not None
