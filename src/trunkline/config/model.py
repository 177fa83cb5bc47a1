"""What a configuration says, as a frozen value; the keys of `trunkline.toml` are its fields.

    Config ──> gateway: GatewaySettings
           ──> http: HttpSettings
           ──> kill_switch: KillSettings
           ──> auth: AuthSettings, if anybody is asked
           ──> journal: JournalSettings
           ──> limits: LimitsSettings, None if nothing is limited
           ──> servers: ServerSettings, in the order of the file
           ──> metrics, traces, log: those of observe_table
           ──> policy: PolicySettings, roles and rules, in the order of the file

Refuses to read anything: files, variables and other people's formats end before this module.

Rules upheld here:
1. One set of types says what may stand in a file: the checks of `fit` and the JSON Schema are both
   read off it, so that neither can know a key that the other does not.
2. Everything has a default: `Config()` is a gateway without servers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from trunkline.config.auth_table import AuthSettings, AuthTable
from trunkline.config.gateway_table import GatewaySettings
from trunkline.config.http_table import HttpSettings
from trunkline.config.journal_table import JournalSettings
from trunkline.config.kill_table import KillSettings, KillTable
from trunkline.config.limits_table import LimitsSettings
from trunkline.config.observe_table import (
    LogSettings,
    MetricsSettings,
    MetricsTable,
    TracesSettings,
)
from trunkline.config.policy_table import ROLES, RULES, PolicySettings, RoleTable
from trunkline.config.server_table import ServerName, ServerSettings, ServerTable


class Config(Struct, frozen=True, kw_only=True):
    """Everything a gateway is told; without a file, nothing but defaults.

    `notes` are what a reader should know of a file that is good all the same, a line each.
    """

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    kill_switch: KillSettings = field(default_factory=KillSettings)
    auth: AuthSettings | None = None
    journal: JournalSettings = field(default_factory=JournalSettings)
    limits: LimitsSettings | None = None
    servers: tuple[ServerSettings, ...] = ()
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    traces: TracesSettings = field(default_factory=TracesSettings)
    log: LogSettings = field(default_factory=LogSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    source: Path | None = None
    notes: tuple[str, ...] = ()


class ConfigTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole `trunkline.toml`."""

    INSTEAD: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ServerTable.__struct_fields__, "put it below [servers.NAME]"
    )
    """What to do with keys of a server, where the header of the server was forgotten."""

    gateway: Annotated[GatewaySettings, Meta(description=GatewaySettings.__doc__)] = field(
        default_factory=GatewaySettings
    )
    http: Annotated[HttpSettings, Meta(description=HttpSettings.__doc__)] = field(
        default_factory=HttpSettings
    )
    kill_switch: Annotated[KillTable, Meta(description=KillTable.__doc__)] = field(
        default_factory=KillTable
    )
    auth: Annotated[AuthTable | None, Meta(description=AuthTable.__doc__)] = None
    journal: Annotated[JournalSettings, Meta(description=JournalSettings.__doc__)] = field(
        default_factory=JournalSettings
    )
    limits: Annotated[LimitsSettings | None, Meta(description=LimitsSettings.__doc__)] = None
    servers: Annotated[
        dict[ServerName, ServerTable], Meta(description="The servers behind the gateway, by name.")
    ] = field(default_factory=dict[str, ServerTable])
    metrics: Annotated[MetricsTable, Meta(description=MetricsTable.__doc__)] = field(
        default_factory=MetricsTable
    )
    traces: Annotated[TracesSettings, Meta(description=TracesSettings.__doc__)] = field(
        default_factory=TracesSettings
    )
    log: Annotated[LogSettings, Meta(description=LogSettings.__doc__)] = field(
        default_factory=LogSettings
    )
    roles: ROLES = field(default_factory=dict[str, RoleTable])
    policy: RULES = ()
