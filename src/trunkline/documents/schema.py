"""JSON Schemas of files that people write: what msgspec says of types, less what no file says."""

from typing import Any


def without_null(definition: dict[str, Any]) -> dict[str, Any]:
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
