"""Difference: what another configuration would change, in a gateway that is running.

    Config, Config ──> servers added, removed, restarted, adjusted ──> lines for people to read
                   ──> keys of all the other tables

Pure: two values in, one out. Refuses to show a value: by now it may be a secret.

Rules upheld here:
1. A server goes on as it is unless something differs that it was started with.
2. Every key that differs is named, also those of tables that this module knows nothing of.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from trunkline.config.model import Config
from trunkline.config.server_table import ServerSettings

UNSTARTED = frozenset(
    (
        "title",
        "env_file",  # its variables are in `env`
        "prefix",
        "timeout",
        "start_timeout",
        "max_in_flight",
        "max_conversations",
        "max_restarts",
        "max_queue",
        "breaker_threshold",
        "breaker_recovery",
        "ping_interval",
    )
)
"""The keys of a server that it was not started with: they are the gateway's own affair."""

_ASIDE = ("servers", "source", "notes")
_WHERE = "lines"
"""The field in which a table says where in the file something stands: that changes nothing."""


class Difference(Struct, frozen=True, kw_only=True):
    """What differs; servers by their names, in the order of the new configuration."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restarted: dict[str, tuple[str, ...]] = {}
    """Those that must be started anew, and the keys for which they must."""
    adjusted: dict[str, tuple[str, ...]] = {}
    """Those that go on, and the keys that differ."""
    reordered: bool = False
    keys: tuple[str, ...] = ()
    """All else, as `gateway.name` or `policy`."""

    def __bool__(self) -> bool:
        return bool(self.lines())

    def touches(self, *tables: str) -> bool:
        """Tell whether something differs in one of these: tables, or keys of them."""
        return any(self.keys_of(table) for table in tables)

    def keys_of(self, table: str) -> tuple[str, ...]:
        """Return what differs in this: a table, or a key of one."""
        return tuple(key for key in self.keys if key == table or key.startswith(f"{table}."))

    def lines(self) -> tuple[str, ...]:
        """Say what differs, a line each."""
        return (
            *(f"servers.{name}: added" for name in self.added),
            *(f"servers.{name}: removed" for name in self.removed),
            *(f"servers.{n}: started anew ({', '.join(k)})" for n, k in self.restarted.items()),
            *(f"servers.{n}: adjusted ({', '.join(k)})" for n, k in self.adjusted.items()),
            *(("servers: in another order",) if self.reordered else ()),
            *self.keys,
        )


def difference(old: Config, new: Config) -> Difference:
    """Return what would change if `new` took the place of `old`."""
    before, after = live_servers(old), live_servers(new)
    kept = [name for name in after if name in before]
    differing = {name: _keys(before[name], after[name]) for name in kept}
    restarted = {name for name in kept if _must_restart(before[name], after[name])}
    return Difference(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        restarted={name: keys for name, keys in differing.items() if name in restarted},
        adjusted={n: keys for n, keys in differing.items() if keys and n not in restarted},
        reordered=kept != [name for name in before if name in after],
        keys=tuple(_table_keys(old, new)),
    )


def keep(old: Config, new: Config, keys: Iterable[str]) -> Config:
    """Return `new`, but with `keys`, as a Difference names them, as `old` has them."""
    for key in keys:
        table, _, inner = key.partition(".")
        kept = getattr(old, table)
        if inner:
            kept = replace(getattr(new, table), **{inner: getattr(kept, inner)})
        new = replace(new, **{table: kept})
    return new


def live_servers(config: Config) -> dict[str, ServerSettings]:
    """Return the servers that are not left out, by their names, in order."""
    return {server.name: server for server in config.servers if not server.disabled}


def _must_restart(old: ServerSettings, new: ServerSettings) -> bool:
    if not UNSTARTED.issuperset(_keys(old, new)):
        return True
    # A child whose first conversation is the only one is told there whom it may ask.
    return new.kind == "child" and (old.max_conversations > 0) != (new.max_conversations > 0)


def _table_keys(old: Config, new: Config) -> list[str]:
    found: list[str] = []
    for table in _keys(old, new):
        if table in _ASIDE:
            continue
        before, after = getattr(old, table), getattr(new, table)
        if isinstance(before, Struct) and type(before) is type(after):
            found += [f"{table}.{key}" for key in _keys(before, after)]
        else:
            found.append(table)
    return found


def _keys(old: Struct, new: Struct) -> tuple[str, ...]:
    """Name the fields in which two values of one type differ."""
    fields = new.__struct_fields__
    return tuple(
        name for name in fields if name != _WHERE and getattr(old, name) != getattr(new, name)
    )
