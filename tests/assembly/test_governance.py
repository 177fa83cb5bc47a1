"""What governs calls: as little as is said, and what is used up stays used up."""

import msgspec

from trunkline.app import App
from trunkline.assembly.governance import authority_of, prepare_governance
from trunkline.config import Config, GatewaySettings, LimitsSettings, PolicySettings, RoleSettings
from trunkline.gateway.governance import Governance
from trunkline.routing.quota import Quota

ROLES = PolicySettings(roles=(RoleSettings(name="dev", permissions=("*",), line=1),))
UNCHECKED = Config(gateway=GatewaySettings(check_arguments=False))


def governance(app: App) -> Governance:
    found = app.gateway.layers.governor
    assert isinstance(found, Governance)
    return found


def test_without_settings_only_the_switches_are_there() -> None:
    app = App(UNCHECKED)
    found = governance(app)
    assert (found.authority, found.throttle, found.arguments) == (None, None, None)
    assert found.switches is app.switches
    assert app.gateway.registry.view.plain
    assert authority_of(UNCHECKED) is None


def test_with_a_role_lists_and_calls_ask_the_same_authority() -> None:
    app = App(Config(policy=ROLES))
    assert governance(app).authority is not None
    assert governance(app).arguments is not None
    assert not app.gateway.registry.view.plain
    assert not app.gateway.registry.view.alike


def quota(made: Governance) -> Quota:
    assert made.throttle is not None
    return made.throttle.quota


def test_what_is_used_is_used_under_other_limits_as_well() -> None:
    app = App(Config(limits=LimitsSettings()))
    used = quota(governance(app))
    for limits in (LimitsSettings(default_rpm=1), None, LimitsSettings()):
        config = msgspec.structs.replace(app.config, limits=limits)
        apply = prepare_governance(app.gateway, config, app.switches)
        before = governance(app)
        assert quota(before) is used
        apply()
        assert governance(app) is not before
        assert quota(governance(app)) is used


def test_limits_may_come_where_there_were_none() -> None:
    app = App(Config())
    assert governance(app).throttle is None
    prepare_governance(app.gateway, Config(limits=LimitsSettings()), app.switches)()
    assert governance(app).throttle is not None
