"""The catalogue that a command shows: that of a running gateway, or of servers that it starts.

a gateway of this configuration runs ──`catalog`──> its tools; nothing is started
none runs ──> only the servers that are needed ──> their tools
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from trunkline.app.control import RunningGateway, send_command
from trunkline.app.local_clients import (
    MAX_CATALOG_BYTES,
    CatalogReport,
    LocalIdentity,
    read_catalog,
)
from trunkline.cli.gateways import find_running_gateway
from trunkline.cli.identities import IdentityOptions
from trunkline.cli.output import EXIT_FAILURE, fail
from trunkline.cli.startup import prepare_gateway
from trunkline.config import Config
from trunkline.jsonrpc import ConnectionLost, RpcError, from_raw, to_raw

# Seconds that a running gateway has; its servers may be starting.
CATALOG_TIMEOUT = 60.0


class ToolOptions(Struct, frozen=True):
    """The options that `tools`, `find` and `call` share."""

    config: Path | None = None
    as_json: bool = False
    timeout: float | None = None
    identity: IdentityOptions = IdentityOptions()


class CatalogQuery(NamedTuple):
    """The options of a command that shows the catalogue."""

    identity: LocalIdentity = LocalIdentity()
    server: str | None = None
    timeout: float | None = None
    uses_snapshots: bool = False
    """Whether stored listings will do for servers that do not run."""


async def read_shown_catalog(config: Config, query: CatalogQuery) -> CatalogReport:
    """Return the tools that a command shows, and the state of the servers that it asked.

    Exits with 1 if the gateway does not answer, or does not accept the token.
    """
    gateway = await find_running_gateway(config.source)
    if gateway is not None:
        found = await ask_gateway(gateway, query)
        wanted = [each.name for each in found.servers if query.server in {None, each.name}]
        return select_servers(found, wanted)
    async with prepare_gateway(config) as started:
        names = [each.name for each in config.servers if not each.disabled]
        if query.server is not None or query.uses_snapshots:
            # Also for one server: the tools of others decide which names are free.
            missing = await started.restore()
            names = [name for name in names if name in missing]
        if query.server is not None:
            names = [query.server]
        await started.start(names, query.timeout)
        try:
            found = await read_catalog(started.app, query.identity, query.server)
        except ValueError as error:
            fail(EXIT_FAILURE, str(error))
    return select_servers(found, names)


def select_servers(found: CatalogReport, names: Iterable[str]) -> CatalogReport:
    """Return a report with only these servers."""
    wanted = set(names)
    servers = tuple(server for server in found.servers if server.name in wanted)
    return CatalogReport(found.tools, servers)


async def ask_gateway(gateway: RunningGateway, query: CatalogQuery) -> CatalogReport:
    """Return the catalogue of a running gateway; exit with 1 if it does not answer."""
    params = {"identity": to_raw(query.identity), "server": query.server}
    timeout = CATALOG_TIMEOUT if query.timeout is None else query.timeout
    try:
        if gateway.path is None:
            raise ConnectionLost("it has stopped")
        answer = await send_command(gateway.path, "catalog", params, timeout, MAX_CATALOG_BYTES)
        return from_raw(answer, CatalogReport)
    # Before OSError, its base class.
    except TimeoutError:
        fail(EXIT_FAILURE, f"the gateway {gateway.pid} did not answer within {timeout:g} s")
    except RpcError as error:
        fail(EXIT_FAILURE, error.message)
    except (OSError, ConnectionLost, ValueError) as error:
        fail(EXIT_FAILURE, f"the gateway {gateway.pid} does not answer: {error}")
