"""Stands in for the servers that the guides take from npm and PyPI; argv has the package.

It runs as `npx` and `uvx`, and needs Python only. Names, descriptions and schemas are those of the
real servers; `outside/test_guides.py` runs the same guides with the real ones.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Arguments = dict[str, Any]


def read_only(name: str, description: str, *properties: str) -> dict[str, Any]:
    return {**tool(name, description, *properties), "annotations": {"readOnlyHint": True}}


def tool(name: str, description: str, *properties: str) -> dict[str, Any]:
    """Describe a tool; its optional arguments end with `?`, and all but `:boolean` are texts."""
    parts = [each.partition(":") for each in properties]
    schema = {
        "type": "object",
        "properties": {name.rstrip("?"): {"type": kind or "string"} for name, _, kind in parts},
        "required": [name for name, _, _ in parts if not name.endswith("?")],
    }
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": False},
    }


def list_directory(arguments: Arguments) -> str:
    kinds = ((each.is_dir(), each.name) for each in sorted(Path(arguments["path"]).iterdir()))
    return "\n".join(f"[{'DIR' if is_dir else 'FILE'}] {name}" for is_dir, name in kinds)


def write_file(arguments: Arguments) -> str:
    Path(arguments["path"]).write_text(arguments["content"])
    return f"Successfully wrote to {arguments['path']}"


def get_current_time(arguments: Arguments) -> str:
    return json.dumps({"timezone": arguments["timezone"], "is_dst": False}, indent=2)


FILES = [
    read_only("read_file", "Read the complete contents of a file as text.", "path"),
    tool("write_file", "Create a new file or completely overwrite one.", "path", "content"),
    tool("move_file", "Move or rename files and directories.", "source", "destination"),
    read_only("list_directory", "Get a detailed listing of all files in a path.", "path"),
]
PULL_REQUEST = "owner repo title head base body? draft?:boolean maintainer_can_modify?:boolean"
GITHUB = [
    tool("create_issue", "Create a new issue in a GitHub repository", "owner", "repo", "title"),
    tool(
        "create_pull_request",
        "Create a new pull request in a GitHub repository",
        *PULL_REQUEST.split(),
    ),
    read_only("get_issue", "Get details of a specific issue in a GitHub repository.", "owner"),
    tool("merge_pull_request", "Merge a pull request", "owner", "repo", "commit_title?"),
]
TIME = [
    read_only("get_current_time", "Get current time in a specific timezone", "timezone"),
    read_only("convert_time", "Convert time between timezones", "source_timezone", "time"),
]
PACKAGES: dict[str, list[dict[str, Any]]] = {
    "@modelcontextprotocol/server-filesystem": FILES,
    "@modelcontextprotocol/server-github": GITHUB,
    "mcp-server-time": TIME,
    "tracker": [read_only("search", "Search the issues.", "query")],
}
FUNCTIONS: dict[str, Callable[[Arguments], str]] = {
    "list_directory": list_directory,
    "create_issue": json.dumps,
    "write_file": write_file,
    "get_current_time": get_current_time,
}


def answer(package: str, message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the response to a message, or None for a notification."""
    if "id" not in message:
        return None
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            result: dict[str, Any] = {
                "protocolVersion": min(params["protocolVersion"], "2025-11-25"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": package, "version": "1"},
            }
        case "ping":
            result = {}
        case "tools/list":
            result = {"tools": PACKAGES[package]}
        case "tools/call":
            text = FUNCTIONS[params["name"]](params["arguments"])
            result = {"content": [{"type": "text", "text": text}]}
        case method:
            error = {"code": -32601, "message": f"Method not found: {method}"}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def main() -> None:
    package = next(argument for argument in sys.argv[1:] if argument in PACKAGES)
    for line in sys.stdin:
        if (response := answer(package, json.loads(line))) is not None:
            print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
