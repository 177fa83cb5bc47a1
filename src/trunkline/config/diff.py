"""Compares two configurations, to find the changes of a reload.

    Config, Config ──> servers added, removed, restarted, adjusted ──> lines for people
                   ──> changed keys of all other tables

Invariants:
1. A server keeps running unless a key differs that it was started with.
2. Every changed key is named, also in tables that this module does not know.
3. Values are never shown: they may be secrets.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from trunkline.backends.command import CommandSettings
from trunkline.config.model import Config
from trunkline.config.server_table import ServerSettings

# Keys of a server that change without a restart of the server.
# A key that is missing here causes an unnecessary restart, never a missing one.
LIVE_KEYS = frozenset(
    (
        "title",
        "check_arguments",
        "normalise_schemas",
        "env_file",  # its variables are in `env`
        "prefix",
        "instructions",
        "timeout",
        "max_timeout",
        "start_timeout",
        "max_in_flight",
        "max_in_flight_per_principal",
        "max_sessions",
        "max_restarts",
        "max_queue",
        "breaker_threshold",
        "breaker_recovery",
        "ping_interval",
        "idle_stop",
    )
)

_SEPARATE_FIELDS = ("servers", "source", "notes", "resolved")
# Line numbers do not count as a change.
_LINES_FIELD = "lines"


class ConfigDiff(Struct, frozen=True, kw_only=True):
    """What differs; servers by name, in the order of the new configuration."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    # Servers to restart, with the keys that require it.
    restarted: dict[str, tuple[str, ...]] = {}
    # Servers that keep running, with changed keys.
    adjusted: dict[str, tuple[str, ...]] = {}
    reordered: bool = False
    # Other changed keys, such as `gateway.name` or `policy`.
    keys: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lines())

    def affects(self, *tables: str) -> bool:
        """Whether something differs in one of these tables or keys."""
        return any(self.changed_keys(table) for table in tables)

    def changed_keys(self, table: str) -> tuple[str, ...]:
        """Return the changed keys in a table, or the key itself."""
        return tuple(key for key in self.keys if key == table or key.startswith(f"{table}."))

    def lines(self) -> tuple[str, ...]:
        """Describe the changes, one per line."""
        return (
            *(f"servers.{name}: added" for name in self.added),
            *(f"servers.{name}: removed" for name in self.removed),
            *(f"servers.{n}: restarted ({', '.join(k)})" for n, k in self.restarted.items()),
            *(f"servers.{n}: adjusted ({', '.join(k)})" for n, k in self.adjusted.items()),
            *(("servers: reordered",) if self.reordered else ()),
            *self.keys,
        )


def compare_configs(old: Config, new: Config) -> ConfigDiff:
    """Return what changes if `new` replaces `old`."""
    before, after = enabled_servers(old), enabled_servers(new)
    kept = [name for name in after if name in before]
    differing = {name: _changed_server_keys(before[name], after[name]) for name in kept}
    restarted = {name for name in kept if _needs_restart(before[name], after[name])}
    return ConfigDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        restarted={name: keys for name, keys in differing.items() if name in restarted},
        adjusted={n: keys for n, keys in differing.items() if keys and n not in restarted},
        # Order matters: of two servers that offer one name, the first keeps it.
        reordered=kept != [name for name in before if name in after],
        keys=tuple(_changed_keys(old, new)),
    )


def with_old_values(old: Config, new: Config, keys: Iterable[str]) -> Config:
    """Return `new` with the values of `keys` from `old`."""
    for key in keys:
        table, _, inner = key.partition(".")
        kept = getattr(old, table)
        if inner:
            kept = replace(getattr(new, table), **{inner: getattr(kept, inner)})
        new = replace(new, **{table: kept})
    return new


def enabled_servers(config: Config) -> dict[str, ServerSettings]:
    """Return the servers that are not disabled, by name, in order."""
    return {server.name: server for server in config.servers if not server.disabled}


def _needs_restart(old: ServerSettings, new: ServerSettings) -> bool:
    if not LIVE_KEYS.issuperset(_changed_server_keys(old, new)):
        return True
    # With one session only, a child is told the client features when it starts.
    is_child = isinstance(new.backend, CommandSettings)
    return is_child and (old.max_sessions > 0) != (new.max_sessions > 0)


def _changed_server_keys(old: ServerSettings, new: ServerSettings) -> tuple[str, ...]:
    before, after = old.explicit_values(), new.explicit_values()
    return tuple(key for key in {**before, **after} if before.get(key) != after.get(key))


def _changed_keys(old: Config, new: Config) -> list[str]:
    found: list[str] = []
    for table in _changed_fields(old, new):
        if table in _SEPARATE_FIELDS:
            continue
        before, after = getattr(old, table), getattr(new, table)
        # A table that appears or disappears, such as [auth], is named as a whole.
        if isinstance(before, Struct) and type(before) is type(after):
            found += [f"{table}.{key}" for key in _changed_fields(before, after)]
        else:
            found.append(table)
    return found


def _changed_fields(old: Struct, new: Struct) -> tuple[str, ...]:
    """Return the fields in which two structs differ."""
    fields = new.__struct_fields__
    return tuple(
        name for name in fields if name != _LINES_FIELD and getattr(old, name) != getattr(new, name)
    )
