"""The `[gateway]` table: how the gateway presents itself, and what must be there for that.

Rule upheld here: `surface = "search"` leaves nobody with an empty list.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from trunkline.config.forms import Seconds, Text, ToolPattern
from trunkline.documents.errors import Report
from trunkline.documents.parse import Table, as_table, table_in


class GatewaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway presents itself to its clients."""

    name: Annotated[Text, Meta(description="How the gateway calls itself: `serverInfo.name`.")] = (
        "trunkline"
    )
    instructions: Annotated[
        str | None, Meta(description="What clients are told about the gateway as a whole.")
    ] = None
    surface: Annotated[
        Literal["all", "search"] | tuple[ToolPattern, ...],
        Meta(description="Which tools are listed: all, those that find others, or patterns."),
    ] = "all"
    strict_lifecycle: Annotated[
        bool,
        Meta(description="Refuse calls before the client has said that it is initialized."),
    ] = True
    check_arguments: Annotated[
        bool,
        Meta(description="Check the arguments of calls against the schemas of the tools."),
    ] = True
    park_ttl: Annotated[
        Seconds,
        Meta(description="Seconds that a client has to answer what a server asks it."),
    ] = 600.0
    max_parked: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Calls that wait for answers of clients, in all."),
    ] = 10_000
    max_parked_per_principal: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls of one principal that wait for answers.")
    ] = 2_000
    watch: Annotated[
        bool,
        Meta(description="Take the configuration again when one of its files has changed."),
    ] = True
    state: Annotated[
        str | None,
        Meta(
            description="The folder for what the gateway found out about servers, seen from the "
            'config file; with "" nothing is kept.'
        ),
    ] = None


def check_gateway(tree: Table, report: Report) -> None:
    """Complain if only the tools that search are to be listed, and there are none."""
    servers = [as_table(value) or {} for value in table_in(tree, "servers").values()]
    finds = any(s.get("builtin") == "search" and s.get("disabled") is not True for s in servers)
    if table_in(tree, "gateway").get("surface") == "search" and not finds:
        why = 'there is no server with builtin = "search", so that nothing would be listed'
        report.error(("gateway", "surface"), why, 'add builtin = "search" below [servers.search]')
