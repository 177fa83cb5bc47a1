"""The rules of MCP and the differences between its revisions, mostly as tables. Pure."""
