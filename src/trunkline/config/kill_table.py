"""The table `[kill_switch]`: what is stopped for as long as the file says so.

    tools = ["fs__delete_*"] ──check_kill──> KillSettings, with the line of each for those who ask

Rules upheld here:
1. A server that is to be stopped is one of the file's: a name that is misspelt stops nothing, and
   nobody would know.
2. Where each switch stands is known: who wants to revive it is sent there.
"""

from typing import Annotated, cast

from msgspec import Meta, Struct, field

from trunkline.config.forms import ToolPattern, form
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Report, meant, quoted
from trunkline.documents.parse import Table, table_in

Named = Annotated[
    str,
    form(
        r"^[^\x00-\x1f\x7f-\x9f]+$",
        "a name of up to 256 characters, none of them a control character",
        256,
    ),
]

LISTS = ("tools", "servers", "subjects")
MOST = 1000
"""How many of each may be listed."""


class KillTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stopped: calls of it are answered `disabled`, and it is not listed."""

    tools: Annotated[
        tuple[ToolPattern, ...],
        Meta(max_length=MOST, description="Tools that are stopped, by name or by pattern."),
    ] = ()
    servers: Annotated[
        tuple[Named, ...], Meta(max_length=MOST, description="Servers that are stopped.")
    ] = ()
    subjects: Annotated[
        tuple[Named, ...],
        Meta(max_length=MOST, description="Those whose calls are stopped, by subject or by id."),
    ] = ()
    all: Annotated[bool, Meta(description="Stop everything but the operator's own tools.")] = False


class KillSettings(KillTable, frozen=True, kw_only=True):
    """What the table says, and the line in the file of each name, by key and name."""

    lines: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


def check_kill(tree: Table, report: Report) -> None:
    """Complain about servers that are not there; what breaks the types is passed over."""
    servers = table_in(tree, "servers")
    for index, name in enumerate(_names(table_in(tree, "kill_switch"), "servers")):
        if isinstance(name, str) and name not in servers:
            close = meant(name, servers)
            fix = f"did you mean {quoted(close)}?" if close else "name one that is below [servers]"
            path = ("kill_switch", "servers", index)
            report.error(path, f"there is no server {quoted(name)}", fix)


def fill_kill(tree: Table, _: Surroundings, report: Report) -> Table:
    """Return the table, and with it where in the file each switch stands, by key and name."""
    table = table_in(tree, "kill_switch")
    found: dict[tuple[str, str], int] = {}
    for key in LISTS:
        for index, name in enumerate(_names(table, key)):
            place = report.lines.find(("kill_switch", key, index))
            found.setdefault((key, str(name)), place.line)
    if table.get("all"):
        found["all", ""] = report.lines.find(("kill_switch", "all")).line
    return table | {"lines": found}


def _names(table: Table, key: str) -> list[object]:
    named: object = table.get(key)
    return cast("list[object]", named) if isinstance(named, list) else []
