"""The configuration of the gateway: `trunkline.toml`, or the file of any MCP client.

Read it in this order: model (what a configuration says); lines and errors (where one is wrong, and
why); toml_lines, json_lines and parse (text to tables); fit and entry (tables against types);
substitute, env_file, settle and http_table (references and files); client_entries (other programs'
words); load; then client_files, write_toml and schema, which stand alone.
"""

from trunkline.config.client_files import ClientFile, find_client_files
from trunkline.config.errors import ConfigError, ConfigErrors
from trunkline.config.http_table import AddressError, split_address
from trunkline.config.load import Draft, load, read
from trunkline.config.model import Config, GatewaySettings, HttpSettings, ServerSettings
from trunkline.config.schema import config_schema, shipped_schema
from trunkline.config.write_toml import to_toml

__all__ = [
    "AddressError",
    "ClientFile",
    "Config",
    "ConfigError",
    "ConfigErrors",
    "Draft",
    "GatewaySettings",
    "HttpSettings",
    "ServerSettings",
    "config_schema",
    "find_client_files",
    "load",
    "read",
    "shipped_schema",
    "split_address",
    "to_toml",
]
