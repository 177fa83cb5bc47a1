"""What governs calls, as the settings have it: each part of its own, or none.

    Config ──> authority_of, … ──> Governance ──> Layers.governor, and the View's sight

A part that the settings say nothing about is not there, and costs nothing.
"""

from trunkline.assembly.policy import policy_of
from trunkline.assembly.view import view_of
from trunkline.config import Config
from trunkline.gateway.authority import Authority
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.governance import Governance


def govern(gateway: Gateway, config: Config) -> None:
    """Have a gateway govern its calls as the settings say; also anew, with other settings."""
    governance = governance_of(config)
    gateway.layers.governor = governance
    gateway.registry.view = view_of(config, governance)


def governance_of(config: Config) -> Governance | None:
    """Return what the settings say about who may do what, how much of it, and whether at all."""
    governance = Governance(authority=authority_of(config))
    return None if governance.idle else governance


def authority_of(config: Config) -> Authority | None:
    """Return what the settings say about who may do what."""
    policy = policy_of(config)
    return None if policy.is_open else Authority(policy)
