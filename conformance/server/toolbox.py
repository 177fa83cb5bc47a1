"""Tool definitions: name, description, schema and handler."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams

from conformance.server.samples import Context, JsonObject, text

Run = Callable[[Context, CallToolRequestParams], Awaitable[JsonObject]]

NOTHING: JsonObject = {"type": "object", "properties": {}}


class Tool(NamedTuple):
    """A tool definition with its handler."""

    description: str
    schema: JsonObject
    run: Run


class Toolbox(dict[str, Tool]):
    """Tools by name, in the order of their definition."""

    def add(
        self, name: str, description: str, schema: JsonObject = NOTHING
    ) -> Callable[[Run], Run]:
        """Register the decorated function as a tool."""

        def keep(run: Run) -> Run:
            self[name] = Tool(description, schema, run)
            return run

        return keep


def strings(**descriptions: str) -> JsonObject:
    """Return the schema of arguments that are all strings and all required."""
    properties = {
        name: {"type": "string", "description": each} for name, each in descriptions.items()
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def argument(params: CallToolRequestParams, name: str) -> str:
    """Return a required string argument."""
    value = (params.arguments or {}).get(name)
    if not isinstance(value, str):
        raise MCPError(INVALID_PARAMS, f"expected a string as {name!r}, got {value!r}")
    return value


def says(*lines: str) -> JsonObject:
    """Return a tool result of text blocks."""
    return {"content": [text(line) for line in lines]}
