"""The configuration of the gateway: `trunkline.toml`, or the file of any MCP client.

Read `documents` first, then in this order: model (what a configuration says); entry (tables against
it); substitute, env_file, settle, and the tables beside it (references and files);
client_entries (other programs' words); load; then client_files, write_toml and schema, which stand
alone.
"""

from trunkline.config.auth_table import AuthSettings, JwtSettings
from trunkline.config.client_files import ClientFile, find_client_files
from trunkline.config.http_table import AddressError, is_loopback, split_address
from trunkline.config.journal_table import JournalSettings
from trunkline.config.kill_table import KillSettings
from trunkline.config.limits_table import LimitsSettings, LimitTable, OwnLimitTable
from trunkline.config.load import Draft, load, read
from trunkline.config.model import Config, GatewaySettings, HttpSettings, ServerSettings
from trunkline.config.observe_settings import LogSettings, MetricsSettings, TracesSettings
from trunkline.config.policy_table import PolicySettings, RoleSettings, RuleSettings
from trunkline.config.schema import config_schema, shipped_schema
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
    "find_client_files",
    "is_loopback",
    "load",
    "read",
    "shipped_schema",
    "split_address",
    "to_toml",
]
