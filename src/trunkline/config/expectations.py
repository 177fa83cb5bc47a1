"""What a policy is expected to say, as a file for `trunkline policy test` has it.

    [[expect]] tables ──fit──> complaints ──> Expectation, each with its line

Refuses to judge: it only says what is expected.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import msgspec.inspect
from msgspec import Meta, Struct, field

from trunkline.config.policy_table import Hint, KindName, RoleName
from trunkline.documents.errors import Report
from trunkline.documents.fit import fit
from trunkline.documents.parse import as_table, parse_toml
from trunkline.documents.reading import read_text

MAX_FILE = 1024 * 1024

Name = Annotated[str, Meta(pattern=r"^\S+$", extra={"expected": "the name of a tool, or a URI"})]


class ExpectTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call, and what is to become of it."""

    tool: Name
    expect: Literal["allow", "deny", "hidden"]
    subject: str = "somebody"
    roles: tuple[RoleName, ...] = ()
    client: str = ""
    kind: KindName = "tool"
    server: str | None = None
    """Who offers it; as its prefix says unless set."""
    annotations: dict[Hint, bool] = field(default_factory=dict[Hint, bool])
    """What its server says of it, since nobody is started to ask; nothing unless set."""
    rule: str | None = None
    """How the rule that decides begins, such as `policy[2]` or `role dev`."""


class Expectation(ExpectTable, frozen=True, kw_only=True):
    """The same, with the arguments of the call and the line where it begins."""

    line: int
    args: dict[str, Any] = field(default_factory=dict[str, Any])


_TYPE = msgspec.inspect.type_info(ExpectTable)


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """Return what the file at `path` expects, in its order; raises ConfigErrors."""
    parsed = parse_toml(read_text(path, MAX_FILE, "check the name"), str(path))
    report = parsed.report
    tree = as_table(parsed.tree) or {}
    for key in tree:
        if key != "expect":
            report.error((key,), "unknown key", "write [[expect]], one for each call")
    tables = tree.get("expect", [])
    if not isinstance(tables, list):
        report.error(("expect",), "expected a list of tables", "write [[expect]]")
        tables = []
    numbered = enumerate(cast("list[Any]", tables))
    found = [_read(table, number, report) for number, table in numbered]
    report.check()
    return msgspec.convert(found, tuple[Expectation, ...])


def _read(value: Any, number: int, report: Report) -> dict[str, Any]:
    """Return the table of one expectation, complaining of what makes no sense."""
    path = ("expect", number)
    table = dict(as_table(value) or {})
    args = table.pop("args", {})  # whatever a tool may take
    fit(table if as_table(value) is not None else value, _TYPE, path, report.error)
    if as_table(args) is None:
        report.error((*path, "args"), "expected a table", 'write args = { path = "/tmp" }')
    return table | {"args": args, "line": report.lines.find(path).line}
