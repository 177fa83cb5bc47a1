"""A server with an extension, and with definitions that strict clients reject."""

import json
import sys

UI = "io.modelcontextprotocol/ui"
NOTHING = {"type": "object", "properties": [], "required": None}
ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {}, "extensions": {UI: {"mimeTypes": ["x/y"]}}},
        "serverInfo": {"name": "sloppy", "version": "1"},
    },
    "tools/list": {
        "tools": [
            {"name": "echo", "annotations": None, "description": 7, "inputSchema": NOTHING},
            {"name": "", "inputSchema": {"type": "object"}},
        ]
    },
    "tools/call": {"content": [{"type": "text", "text": "it works"}]},
    "resources/list": {"resources": [{"uri": "sloppy://nameless", "mimeType": None}]},
    "resources/templates/list": {"resourceTemplates": []},
}

for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        found = ANSWERS.get(asked["method"])
        end = {"error": {"code": -32601, "message": "no"}} if found is None else {"result": found}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **end}), flush=True)
