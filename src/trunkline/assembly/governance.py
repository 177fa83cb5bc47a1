"""What governs calls, as the settings have it: each part of its own, or none.

    Config ──> authority_of, throttle_of, arguments_of ──> Governance, and the View of the catalogue

A part that the settings say nothing about is not there, and costs nothing. Switches are always
there: anything may have to be stopped.
"""

from collections.abc import Callable

from trunkline.assembly.limits import arguments_of, limits_of, throttle_of
from trunkline.assembly.policy import policy_of
from trunkline.assembly.view import view_of
from trunkline.config import Config
from trunkline.gateway.authority import Authority
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.governance import Governance
from trunkline.gateway.switches import Switches
from trunkline.gateway.throttle import Throttle
from trunkline.routing.limits import Limits


def prepare_governance(gateway: Gateway, config: Config, switches: Switches) -> Callable[[], None]:
    """Return what has a gateway govern its calls as the settings say; also anew, with others.

    Whoever has used up what they may ask for has used it up under other limits as well.
    """
    authority, layers = authority_of(config), gateway.layers
    view = view_of(config, authority)
    arguments = arguments_of(config, layers.events.tell)

    def apply() -> None:
        throttle = _adopted(layers.governor, config)
        layers.governor = Governance(authority, switches, throttle, arguments)
        gateway.registry.show(view)

    return apply


def authority_of(config: Config) -> Authority | None:
    """Return what the settings say about who may do what."""
    policy = policy_of(config)
    return None if policy.is_open else Authority(policy)


def _adopted(before: object, config: Config) -> Throttle | None:
    known = before.throttle if isinstance(before, Governance) else None
    if known is None:
        return throttle_of(config)
    return known.under(Limits() if config.limits is None else limits_of(config.limits))
