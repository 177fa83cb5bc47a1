"""The configuration of the gateway: `trunkline.toml`, or the file of any MCP client.

Read `documents` first, then in this order: forms, addresses, surroundings, paths and substitute
(what tables are made of); the modules called *_table, one a table, and tables, which lists them;
model (all of them as one value); entry, env_file, settle and ourselves (servers); client_entries
(other programs' words); load; then client_files, write_toml and schema, which stand alone.
"""

from trunkline.config.addresses import AddressError, is_loopback, split_address
from trunkline.config.auth_table import AuthSettings, JwtSettings
from trunkline.config.client_files import ClientFile, find_client_files
from trunkline.config.gateway_table import GatewaySettings
from trunkline.config.http_table import HttpSettings
from trunkline.config.journal_table import JournalSettings
from trunkline.config.kill_table import KillSettings
from trunkline.config.limits_table import LimitsSettings, LimitTable, OwnLimitTable
from trunkline.config.load import Draft, load, read
from trunkline.config.model import Config
from trunkline.config.observe_table import LogSettings, MetricsSettings, TracesSettings
from trunkline.config.ourselves import expect_others, is_ourselves
from trunkline.config.policy_table import PolicySettings, RoleSettings, RuleSettings
from trunkline.config.schema import config_schema, shipped_schema
from trunkline.config.server_table import ServerSettings
from trunkline.config.write_toml import to_toml
from trunkline.documents.errors import ConfigError, ConfigErrors

__all__ = [
    "AddressError",
    "AuthSettings",
    "ClientFile",
    "Config",
    "ConfigError",
    "ConfigErrors",
    "Draft",
    "GatewaySettings",
    "HttpSettings",
    "JournalSettings",
    "JwtSettings",
    "KillSettings",
    "LimitTable",
    "LimitsSettings",
    "LogSettings",
    "MetricsSettings",
    "OwnLimitTable",
    "PolicySettings",
    "RoleSettings",
    "RuleSettings",
    "ServerSettings",
    "TracesSettings",
    "config_schema",
    "expect_others",
    "find_client_files",
    "is_loopback",
    "is_ourselves",
    "load",
    "read",
    "shipped_schema",
    "split_address",
    "to_toml",
]
