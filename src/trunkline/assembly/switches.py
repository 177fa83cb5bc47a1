"""What is stopped, as the settings and the folder for state have it."""

from collections.abc import Mapping
from pathlib import Path

from trunkline.config import Config
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.switches import Switches
from trunkline.operator.switch_file import SwitchFile
from trunkline.routing.switches import EVERYTHING, Switch, What

_KEYS = {"tools": What.TOOL, "servers": What.SERVER, "subjects": What.SUBJECT}


def switches_of(config: Config, gateway: Gateway, keeper: SwitchFile | None) -> Switches:
    """Return what is stopped from the beginning, by the file and by what was kept."""
    return Switches(
        gateway.layers,
        gateway.registry,
        stopped_by_file(config),
        () if keeper is None else keeper.load(),
        keeper,
        exempt=operators(config),
    )


def switch_file(config: Config, state: Path | None) -> SwitchFile | None:
    """Return where what is stopped at run time is kept, None if nowhere."""
    return None if state is None else SwitchFile(state, config.source)


def operators(config: Config) -> frozenset[str]:
    """Name the servers with the operator's own tools: whoever has stopped all needs them."""
    return frozenset(server.name for server in config.servers if server.builtin == "operator")


def stopped_by_file(config: Config) -> Mapping[Switch, str]:
    """Return what the file stops, each with the place where it says so."""
    kill, file = config.kill_switch, config.source or "trunkline.toml"
    found = {
        Switch(what, name): (key, name)
        for key, what in _KEYS.items()
        for name in getattr(kill, key)
    }
    if kill.all:
        found[EVERYTHING] = ("all", "")
    return {
        switch: f"{file}:{line}" if (line := kill.lines.get(key)) else str(file)
        for switch, key in found.items()
    }
