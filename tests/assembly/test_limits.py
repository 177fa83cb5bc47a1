"""What a configuration says about limits and arguments reaches those who hold them."""

from pathlib import Path

import pytest

from tests.cli.samples import config
from trunkline.app import App
from trunkline.assembly.limits import arguments_of, limits_of, throttle_of
from trunkline.config import (
    Config,
    GatewaySettings,
    LimitsSettings,
    LimitTable,
    OwnLimitTable,
    load,
)
from trunkline.gateway.events import Event
from trunkline.gateway.governance import Governance
from trunkline.routing.limits import Limit, Limits


def ignore(event: Event) -> None:
    """Take no note."""


def test_every_setting_becomes_a_limit() -> None:
    settings = LimitsSettings(
        default_rpm=5,
        max_concurrent=6,
        tools={"a": 1, "b": LimitTable(rpm=1, concurrent=2, total_rpm=3, total_concurrent=4)},
        servers={"c": LimitTable(total_rpm=7)},
        subjects={"d": OwnLimitTable(rpm=8, concurrent=9)},
        roles={"e": 10},
    )
    assert limits_of(settings) == Limits(
        default_rpm=5,
        max_concurrent=6,
        tools={"a": Limit(1), "b": Limit(1, 2, 3, 4)},
        servers={"c": Limit(total_rpm=7)},
        subjects={"d": Limit(8, 9)},
        roles={"e": Limit(10)},
    )
    assert limits_of(LimitsSettings(default_rpm=0)) == Limits()


def test_what_is_not_wanted_is_not_there() -> None:
    assert throttle_of(Config()) is None
    assert throttle_of(Config(limits=LimitsSettings())) is not None
    assert arguments_of(Config(), ignore) is not None
    quiet = Config(gateway=GatewaySettings(check_arguments=False))
    assert arguments_of(quiet, ignore) is None


@pytest.mark.parametrize("table", ["", "[limits]\n"])
def test_a_gateway_of_a_configuration_holds_them(tmp_path: Path, table: str) -> None:
    governor = App(load(Path(config(tmp_path, table)), {})).gateway.layers.governor
    assert isinstance(governor, Governance)
    assert governor.arguments is not None
    assert (governor.throttle is not None) == bool(table)
