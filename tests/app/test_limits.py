"""Building the rate limiter and the argument checker from the settings."""

from pathlib import Path

import pytest

from tests.cli.samples import config
from trunkline.app.application import App
from trunkline.app.build import build_argument_checker, build_limits, build_rate_limiter
from trunkline.config import (
    Config,
    GatewaySettings,
    LimitsSettings,
    LimitTable,
    SubjectLimitTable,
    load_config,
)
from trunkline.gateway.enforcement import EnforcementChain
from trunkline.gateway.events import GatewayEvent
from trunkline.routing.limits import Limit, LimitTables, MemoryLimitStore


def ignore(event: GatewayEvent) -> None:
    """Ignore the event."""


def test_every_setting_becomes_a_limit() -> None:
    settings = LimitsSettings(
        default_rpm=5,
        requests_rpm=4,
        max_concurrent=6,
        tools={"a": 1, "b": LimitTable(rpm=1, concurrent=2, total_rpm=3, total_concurrent=4)},
        servers={"c": LimitTable(total_rpm=7)},
        subjects={"d": SubjectLimitTable(rpm=8, concurrent=9)},
        roles={"e": 10},
    )
    assert build_limits(settings) == LimitTables(
        default_rpm=5,
        requests_rpm=4,
        max_concurrent=6,
        tools={"a": Limit(1), "b": Limit(1, 2, 3, 4)},
        servers={"c": Limit(total_rpm=7)},
        subjects={"d": Limit(8, 9)},
        roles={"e": Limit(10)},
    )
    assert build_limits(LimitsSettings(default_rpm=0, requests_rpm=0)) == LimitTables()


def test_limiter_and_argument_checker_are_built_only_if_configured() -> None:
    store = MemoryLimitStore()
    assert build_rate_limiter(Config(), store) is None
    assert build_rate_limiter(Config(limits=LimitsSettings()), store) is not None
    assert build_argument_checker(Config(), ignore) is not None
    unchecked = Config(gateway=GatewaySettings(check_arguments="off"))
    assert build_argument_checker(unchecked, ignore) is None


@pytest.mark.parametrize("table", ["", "[limits]\n"])
def test_the_gateway_enforces_the_configured_limits(tmp_path: Path, table: str) -> None:
    enforcer = App(load_config(Path(config(tmp_path, table)), {})).gateway.pipeline.enforcer
    assert isinstance(enforcer, EnforcementChain)
    assert enforcer.argument_checker is not None
    assert (enforcer.rate_limiter is not None) == bool(table)
