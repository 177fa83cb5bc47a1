"""A gateway as a service of systemd: which sockets it serves, and what systemd is told about it.

    sockets from systemd ──choose_sockets──> those for MCP, those for metrics
    events of the gateway ──report_status──> STATUS=14 of 15 servers ready

`trunkline.systemd` has the protocol. Nothing here listens.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trunkline.app.application import App
from trunkline.config import AddressError, Config, is_loopback, split_address
from trunkline.gateway.events import (
    BackendStateChanged,
    ConfigReloaded,
    GatewayEvent,
    KillSwitchChanged,
)
from trunkline.systemd import METRICS_NAME, InheritedSocket, Notifier

# Seconds from a change to the status that systemd shows; several changes then count as one.
STATUS_DELAY = 0.5

_STOPPING = "stopping; calls in flight may finish"


class ServiceSockets(NamedTuple):
    """The sockets from systemd, by what they serve."""

    http: tuple[InheritedSocket, ...] = ()
    metrics: tuple[InheritedSocket, ...] = ()


def choose_sockets(config: Config, sockets: Sequence[InheritedSocket]) -> ServiceSockets:
    """Return what each socket serves; raises ValueError if one must not be served."""
    metrics = tuple(each for each in sockets if each.name == METRICS_NAME)
    http = tuple(each for each in sockets if each.name != METRICS_NAME)
    if metrics and config.metrics.listen is None:
        raise ValueError(
            f"systemd passed the socket {METRICS_NAME!r}, but metrics have no address of their own;"
            " set listen in [metrics]"
        )
    for each in http:
        try:
            host, _ = split_address(each.address, config.requires_auth)
            config.metrics.check_host(host)
        except AddressError as error:
            raise ValueError(f"systemd passed a socket at {each.address}: {error}") from None
    for each in metrics:
        host, _ = split_address(each.address, requires_auth=True)
        if config.metrics.token is None and not is_loopback(host):
            raise ValueError(
                f"systemd passed the socket {METRICS_NAME!r} at {each.address}: expected a loopback"
                " address; set token_env in [metrics], or another address in ListenStream="
            )
    return ServiceSockets(http, metrics)


def unused_addresses(config: Config, sockets: ServiceSockets, listen: str | None) -> list[str]:
    """Return a line for each configured address that a socket replaces; `listen` is for MCP."""
    replaced = (
        ("http.listen", listen, sockets.http),
        ("metrics.listen", config.metrics.listen, sockets.metrics),
    )
    lines: list[str] = []
    for key, address, found in replaced:
        addresses = [each.address for each in found]
        if address is not None and addresses and address not in addresses:
            used = ", ".join(addresses)
            lines.append(f"{key}: {address} is not used; the socket from systemd is {used}")
    return lines


def report_status(app: App, notifier: Notifier) -> Callable[[], None]:
    """Keep systemd informed; return a function to call once clients can connect."""
    if not notifier.is_active:
        return lambda: None
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def update() -> None:
        nonlocal timer
        timer = None
        notifier.notify_status(describe_status(app))

    def on_event(event: GatewayEvent) -> None:
        nonlocal timer
        if timer is None and isinstance(
            event, BackendStateChanged | ConfigReloaded | KillSwitchChanged
        ):
            timer = loop.call_later(STATUS_DELAY, update)

    app.gateway.pipeline.events.add_listener(on_event, call_filter="none")
    app.on_shutdown = lambda: notifier.notify_stopping(_STOPPING)
    return lambda: notifier.notify_ready(describe_status(app))


def describe_status(app: App) -> str:
    """Return how the gateway is, in words; without names, because every local user can read it."""
    counts = app.gateway.readiness()["servers"]
    total = counts["ready"] + counts["degraded"]
    text = f"{counts['ready']} of {total} {'server' if total == 1 else 'servers'} ready"
    return f"{text}; paused: all calls are refused" if app.switches.paused else text
