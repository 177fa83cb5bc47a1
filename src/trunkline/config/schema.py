"""The JSON Schema (2020-12) of `trunkline.toml`, generated from the types that it is read into.

`trunkline.schema.json` beside this file is its output; a test keeps the two equal, and another
checks that schema and loader agree on what is valid. Some things a schema cannot say: that a
variable must be set, that a url needs a host, that two headers must not differ in case alone, that
an address must be loopback's and two paths not the same.
"""

import json
from importlib.resources import files
from typing import Any

import msgspec

from trunkline.config.entry import BELONGS, KINDS
from trunkline.config.model import ConfigTable, GatewaySettings, HttpSettings, ServerTable

FILE = "trunkline.schema.json"

_TITLES = {
    ConfigTable: "trunkline.toml",
    GatewaySettings: "gateway",
    HttpSettings: "http",
    ServerTable: "server",
}


def config_schema() -> dict[str, Any]:
    """Return the schema of a whole `trunkline.toml`."""
    _, found = msgspec.json.schema_components([ConfigTable], ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = {}
    for kind, title in _TITLES.items():
        definitions[title] = _without_null(found[kind.__name__]) | {"title": title}
    server = definitions["server"]
    server["oneOf"] = [{"required": [kind]} for kind in KINDS]
    server["dependentRequired"] = {key: [owner] for key, owner in BELONGS.items()}
    whole = definitions.pop("trunkline.toml")
    text = json.dumps(whole | {"$defs": definitions})
    for kind, title in _TITLES.items():
        text = text.replace(f"#/$defs/{kind.__name__}", f"#/$defs/{title}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | json.loads(text)


def _without_null(definition: dict[str, Any]) -> dict[str, Any]:
    """Leave null out: TOML has none, and where we say None a key is simply not there."""
    properties: dict[str, dict[str, Any]] = definition["properties"]
    for each in properties.values():
        if each.get("default", "") is None:
            del each["default"]
        choices = [choice for choice in each.pop("anyOf", ()) if choice != {"type": "null"}]
        if len(choices) > 1:
            each["anyOf"] = choices
        for choice in choices[:1] if "anyOf" not in each else ():
            each.update(choice)
        if "enum" in each:
            each["enum"] = [choice for choice in each["enum"] if choice is not None]
    return definition


def schema_text() -> str:
    """Return the schema as it is shipped."""
    return json.dumps(config_schema(), indent=2) + "\n"


def shipped_schema() -> dict[str, Any]:
    """Read the schema that was shipped with this package."""
    return json.loads(files("trunkline.config").joinpath(FILE).read_text(encoding="utf-8"))
