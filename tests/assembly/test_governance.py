"""What governs calls: nothing where nothing is said, and what is said where something is."""

from trunkline.app import App
from trunkline.assembly.governance import governance_of
from trunkline.config import Config, PolicySettings, RoleSettings

ROLES = PolicySettings(roles=(RoleSettings(name="dev", permissions=("*",), line=1),))


def test_without_settings_nothing_is_governed_and_nothing_costs() -> None:
    assert governance_of(Config()) is None
    gateway = App(Config()).gateway
    assert gateway.layers.governor is None
    assert gateway.registry.view.plain


def test_with_a_role_lists_and_calls_ask_the_same_governance() -> None:
    gateway = App(Config(policy=ROLES)).gateway
    governor = gateway.layers.governor
    assert governor is not None
    assert not gateway.registry.view.plain
    assert not gateway.registry.view.alike
