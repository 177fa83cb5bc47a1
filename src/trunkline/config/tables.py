"""The tables of a `trunkline.toml`, a line each: what is done with them beside fitting their types.

    tree ── check ──> complaints ── fill ──> what Config takes
     └───── portable ──> the same table, for a file in another folder

`model` says what each may hold and what becomes of it; the functions are in the module of the
table. A table without a line here, or without one of the three, is taken as it stands. The servers
are not among them: those can come from other programs' files, too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trunkline.config.auth_table import check_auth, fill_auth, portable_auth
from trunkline.config.gateway_table import check_gateway
from trunkline.config.http_table import check_http, fill_http, portable_http
from trunkline.config.journal_table import check_journal, fill_journal, portable_journal
from trunkline.config.kill_table import check_kill, fill_kill
from trunkline.config.limits_table import check_limits
from trunkline.config.observe_table import check_metrics, fill_metrics, fill_traces
from trunkline.config.policy_table import check_policy, fill_policy
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Report
from trunkline.documents.parse import Table


class Ways(NamedTuple):
    """What is done with one table; `check` sees the whole tree and `fill` all but the servers."""

    check: Callable[[Table, Report], None] | None = None
    fill: Callable[[Table, Surroundings, Report], object] | None = None
    portable: Callable[[Table, Path], Table] | None = None


TABLES = {
    "gateway": Ways(check_gateway),
    "http": Ways(check_http, fill_http, portable_http),
    "kill_switch": Ways(check_kill, fill_kill),
    "auth": Ways(check_auth, fill_auth, portable_auth),
    "metrics": Ways(check_metrics, fill_metrics),
    "traces": Ways(fill=fill_traces),
    "log": Ways(),
    "journal": Ways(check_journal, fill_journal, portable_journal),
    "limits": Ways(check_limits),
    "roles": Ways(),
    "policy": Ways(check_policy, fill_policy),
}
"""By the key in the file, in the order in which they are written."""
