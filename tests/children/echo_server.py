"""A small MCP server over stdio for tests that need a real child process.

    python tests/children/echo_server.py [--stateless | --stuck]

It has one tool, `echo`, which returns `size` characters. By default it speaks the session protocol,
with `--stateless` only the stateless protocol. With `--stuck` it stops reading at the first call.
"""

import json
import signal
import sys
from typing import Any

TOOL = {"name": "echo", "inputSchema": {"type": "object"}}
INFO = {"name": "echo", "version": "1"}
COMPLETE = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, or None for an unknown method."""
    match method:
        case "initialize":
            version = params["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": INFO}
        case "server/discover":
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            return {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "_meta": meta,
            }
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            text = "x" * params["arguments"]["size"]
            return {"content": [{"type": "text", "text": text}]}
        case "ping":
            return {}
        case _:
            return None


def main() -> None:
    """Answer one request per line until stdin ends."""
    stateless, stuck = "--stateless" in sys.argv, "--stuck" in sys.argv
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, params = message["method"], message.get("params", {})
        if stuck and method == "tools/call":
            signal.pause()
        result = result_of(method, params)
        if ("io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})) != stateless:
            result = None
        if result is None:
            error = {"code": -32601, "message": f"method not found: {method}"}
            answer = {"error": error}
        else:
            answer = {"result": COMPLETE | result if stateless else result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
