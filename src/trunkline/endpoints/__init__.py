"""MCP over HTTP: the endpoints that clients connect to."""
