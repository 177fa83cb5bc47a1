"""HTTP/1.1, server-sent events and WebSocket as bytes; nothing here knows MCP."""
