"""The `[limits]` table: how much anybody may ask for.

    [limits.tools]
    "tracker__*" = 60                             # calls a minute of each subject
    "db__query" = { rpm = 30, concurrent = 2, total_rpm = 300 }

Refuses to know tools: what a pattern fits is found out when servers have said what they offer.
"""

from typing import Annotated

from msgspec import Meta, Struct, field

from trunkline.config.forms import WILDCARD, form
from trunkline.documents.errors import Report
from trunkline.documents.parse import Table, table_in

_MOST = 1_000_000_000

Pattern = Annotated[str, form(WILDCARD, "a name, with * and ? for what may vary", 128)]
Who = Annotated[
    str,
    form(r"^\S([\s\S]*\S)?$", "up to 256 characters, without white space around them", 256),
]
Many = Annotated[int, Meta(ge=1, le=_MOST)]


class OwnLimitTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is allowed to each; what is not said is not limited here."""

    rpm: Annotated[Many | None, Meta(description="Calls a minute of each subject.")] = None
    concurrent: Annotated[
        Many | None, Meta(description="Calls of each subject that may be under way at a time.")
    ] = None


class LimitTable(OwnLimitTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is allowed to each and to all; what is not said is not limited here."""

    total_rpm: Annotated[
        Many | None, Meta(description="Calls a minute of all subjects together.")
    ] = None
    total_concurrent: Annotated[
        Many | None, Meta(description="Calls of all that may be under way at a time.")
    ] = None


class LimitsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much anybody may ask for; without this table nothing is limited."""

    default_rpm: Annotated[
        int,
        Meta(
            ge=0,
            le=_MOST,
            description="Calls a minute of each subject and tool, unless tools says otherwise; "
            "0 for any number.",
        ),
    ] = 1000
    max_concurrent: Annotated[
        Many | None,
        Meta(
            description="Calls of each subject that may be under way at a time, unless subjects "
            "says otherwise."
        ),
    ] = None
    tools: Annotated[
        dict[Pattern, Many | LimitTable],
        Meta(description="Limits by tool, or by a pattern; a number is rpm."),
    ] = field(default_factory=dict[str, int | LimitTable])
    servers: Annotated[
        dict[Pattern, Many | LimitTable],
        Meta(description="Limits by server, or by a pattern; a number is rpm."),
    ] = field(default_factory=dict[str, int | LimitTable])
    subjects: Annotated[
        dict[Who, Many | OwnLimitTable],
        Meta(description="Limits by subject, or by a pattern; a number is rpm."),
    ] = field(default_factory=dict[str, int | OwnLimitTable])
    roles: Annotated[
        dict[Who, Many | LimitTable], Meta(description="Limits by role; a number is rpm.")
    ] = field(default_factory=dict[str, int | LimitTable])


def check_limits(tree: Table, report: Report) -> None:
    """Complain of limits that could never hold; what breaks the types is passed over."""
    known = table_in(tree, "servers")
    for name in table_in(table_in(tree, "limits"), "servers"):
        if name not in known and not set(name) & set("*?"):
            report.error(("limits", "servers", name), "no server has this name", "correct it")
