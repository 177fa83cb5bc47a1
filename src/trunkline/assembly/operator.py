"""The operator's desk, as the settings have it."""

from collections.abc import Callable
from typing import Any

from trunkline.assembly.concealing import without_secrets
from trunkline.config import Config
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.switches import NotSwitched, Switches
from trunkline.jsonrpc import RpcError
from trunkline.operator.desk import Desk, Done

REFUSED = 1
"""The code of what the control socket refuses; whoever asks reads the message."""


def desk_of(config: Callable[[], Config], gateway: Gateway, switches: Switches) -> Desk:
    """Return the desk; what it hides are the secrets that the configuration has by then."""

    def hide(text: str) -> str:
        return without_secrets(text, *config().servers)

    desk = Desk(gateway, switches, hide=hide)
    follow(desk, config())
    return desk


def follow(desk: Desk, config: Config) -> None:
    """Have the desk listen to what happens only where somebody can ask it over MCP."""
    if any(server.builtin == "operator" and not server.disabled for server in config.servers):
        desk.listen()


def commands_of(desk: Desk) -> dict[str, Callable[..., Any]]:
    """Return what the user can tell the gateway through the control socket."""

    async def kill(what: str, name: str = "") -> Done:
        try:
            return await desk.kill(what, name)
        except NotSwitched as why:
            raise RpcError(REFUSED, str(why)) from None

    async def revive(what: str, name: str = "") -> Done:
        try:
            return await desk.revive(what, name)
        except NotSwitched as why:
            raise RpcError(REFUSED, str(why)) from None

    def pause() -> Done:
        return desk.pause()

    def resume() -> Done:
        return desk.resume()

    return {"kill": kill, "revive": revive, "pause": pause, "resume": resume}
