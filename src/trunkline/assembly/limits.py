"""How much anybody may ask for, and with which arguments, as the settings have it."""

from collections.abc import Callable, Mapping

from trunkline.config import Config, LimitsSettings, LimitTable, OwnLimitTable
from trunkline.gateway.arguments import Arguments
from trunkline.gateway.events import Unchecked
from trunkline.gateway.throttle import Throttle
from trunkline.routing.limits import Limit, Limits


def throttle_of(config: Config) -> Throttle | None:
    """Return what counts calls, None if nothing is limited."""
    return None if config.limits is None else Throttle(limits_of(config.limits))


def limits_of(settings: LimitsSettings) -> Limits:
    """Return what the settings limit; also for a Throttle that is to adopt them."""
    return Limits(
        default_rpm=settings.default_rpm or None,
        max_concurrent=settings.max_concurrent,
        tools=_table(settings.tools),
        servers=_table(settings.servers),
        subjects=_table(settings.subjects),
        roles=_table(settings.roles),
    )


def arguments_of(config: Config, tell: Callable[[Unchecked], None]) -> Arguments | None:
    """Return what checks the arguments of calls, None if that is not wanted.

    Tools that are built in check their own, and more strictly.
    """
    if not config.gateway.check_arguments:
        return None
    return Arguments(tell, (server.name for server in config.servers if server.builtin))


def _table(
    table: Mapping[str, int | LimitTable] | Mapping[str, int | OwnLimitTable],
) -> Mapping[str, Limit]:
    return {name: _limit(value) for name, value in table.items()}


def _limit(value: int | OwnLimitTable) -> Limit:
    if isinstance(value, int):
        return Limit(value)
    if isinstance(value, LimitTable):
        return Limit(value.rpm, value.concurrent, value.total_rpm, value.total_concurrent)
    return Limit(value.rpm, value.concurrent)
