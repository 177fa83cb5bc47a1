"""The JSON Schema (2020-12) of `trunkline.toml`, generated from the types that it is read into.

`trunkline.schema.json` beside this file is its output; a test keeps the two equal, and another
checks that schema and loader agree on what is valid. Some things a schema cannot say: that a
variable must be set, that a url needs a host, that two headers must not differ in case alone, that
some are ours to send, that two weights make 1 together, that an address must be loopback's and two
paths not the same, that a table of `[auth]` must go with its mode, that OAuth and a header are two
ways to say the same.
"""

import json
from importlib.resources import files
from typing import Any

import msgspec

from trunkline.config.auth_table import AuthTable, JwtTable, KeyTable
from trunkline.config.entry import BELONGS, BUILTIN, KINDS
from trunkline.config.gateway_table import GatewaySettings
from trunkline.config.http_table import HttpSettings
from trunkline.config.journal_table import JournalSettings
from trunkline.config.kill_table import KillTable
from trunkline.config.limits_table import LimitsSettings, LimitTable, OwnLimitTable
from trunkline.config.model import ConfigTable
from trunkline.config.oauth_table import OAuthSettings
from trunkline.config.observe_table import LogSettings, MetricsTable, TracesSettings
from trunkline.config.policy_table import RoleTable, RuleTable
from trunkline.config.server_table import ServerTable
from trunkline.documents.schema import without_null

FILE = "trunkline.schema.json"

_TITLES = {
    ConfigTable: "trunkline.toml",
    GatewaySettings: "gateway",
    HttpSettings: "http",
    KillTable: "kill_switch",
    AuthTable: "auth",
    JwtTable: "auth.jwt",
    KeyTable: "auth.key",
    JournalSettings: "journal",
    LimitsSettings: "limits",
    LimitTable: "limit",
    OwnLimitTable: "own limit",
    ServerTable: "server",
    OAuthSettings: "oauth",
    MetricsTable: "metrics",
    TracesSettings: "traces",
    LogSettings: "log",
    RoleTable: "role",
    RuleTable: "rule",
}


def config_schema() -> dict[str, Any]:
    """Return the schema of a whole `trunkline.toml`."""
    _, found = msgspec.json.schema_components([ConfigTable], ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = {}
    for kind, title in _TITLES.items():
        definitions[title] = without_null(found[kind.__name__]) | {"title": title}
    secrets = ("client_secret", "client_secret_env")
    definitions["oauth"]["oneOf"] = [{"required": [key]} for key in secrets]
    server = definitions["server"]
    server["oneOf"] = [{"required": [kind]} for kind in KINDS]
    server["dependentRequired"] = {key: [owner] for key, owner in BELONGS.items()}
    server["dependentSchemas"] = {
        key: {"required": ["builtin"], "properties": {"builtin": {"const": owner}}}
        for key, owner in BUILTIN.items()
    }
    whole = definitions.pop("trunkline.toml")
    text = json.dumps(whole | {"$defs": definitions})
    for kind, title in _TITLES.items():
        text = text.replace(f"#/$defs/{kind.__name__}", f"#/$defs/{title}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | json.loads(text)


def schema_text() -> str:
    """Return the schema as it is shipped."""
    return json.dumps(config_schema(), indent=2) + "\n"


def shipped_schema() -> dict[str, Any]:
    """Read the schema that was shipped with this package."""
    return json.loads(files("trunkline.config").joinpath(FILE).read_text(encoding="utf-8"))
