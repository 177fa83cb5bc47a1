"""The configuration of the gateway: `trunkline.toml`, or the file of any MCP client.

Modules in import order: addresses, references; the tables (auth, gateway, telemetry, audit, server,
policy); model; diff, client_files, load, write_toml. `documents` parses files and collects errors.
"""

from trunkline.config.addresses import AddressError, is_loopback, split_address
from trunkline.config.audit_table import AuditSettings
from trunkline.config.auth_table import AuthSettings, JwtSettings
from trunkline.config.client_files import ClientFile, find_client_files
from trunkline.config.gateway_tables import GatewaySettings, HttpSettings
from trunkline.config.load import (
    RawConfig,
    is_own_url,
    load_config,
    read_raw_config,
    require_no_self_reference,
)
from trunkline.config.model import Config, config_schema, shipped_schema
from trunkline.config.policy_tables import (
    KillSwitchSettings,
    LimitsSettings,
    LimitTable,
    PolicySettings,
    RoleSettings,
    RuleSettings,
    SubjectLimitTable,
)
from trunkline.config.server_table import ServerSettings
from trunkline.config.telemetry_tables import LogSettings, MetricsSettings, TracesSettings
from trunkline.config.write_toml import to_toml
from trunkline.documents.errors import ConfigError, ConfigErrors

__all__ = [
    "AddressError",
    "AuditSettings",
    "AuthSettings",
    "ClientFile",
    "Config",
    "ConfigError",
    "ConfigErrors",
    "GatewaySettings",
    "HttpSettings",
    "JwtSettings",
    "KillSwitchSettings",
    "LimitTable",
    "LimitsSettings",
    "LogSettings",
    "MetricsSettings",
    "PolicySettings",
    "RawConfig",
    "RoleSettings",
    "RuleSettings",
    "ServerSettings",
    "SubjectLimitTable",
    "TracesSettings",
    "config_schema",
    "find_client_files",
    "is_loopback",
    "is_own_url",
    "load_config",
    "read_raw_config",
    "require_no_self_reference",
    "shipped_schema",
    "split_address",
    "to_toml",
]
